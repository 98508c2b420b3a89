// Texts of a page with a contrast below 4.5 to 1, as WCAG counts: [[text, colour, ratio], ...].
() => {
  const parse = (colour) => {
    const [red, green, blue, alpha = 1] = colour.match(/[\d.]+/g).map(Number);
    return { rgb: [red, green, blue], alpha };
  };
  const ground = (node) => {
    const layers = [];
    for (let each = node; each; each = each.parentElement) {
      layers.push(parse(getComputedStyle(each).backgroundColor));
      if (layers.at(-1).alpha === 1) break;
    }
    return layers.reverse().reduce((below, { rgb, alpha }) => rgb.map((part, at) => alpha * part + (1 - alpha) * below[at]), [255, 255, 255]);
  };
  const luminance = (rgb) => {
    const [red, green, blue] = rgb.map((part) => part / 255).map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const faint = [];
  for (const node of document.querySelectorAll("body *")) {
    const text = [...node.childNodes].filter((child) => child.nodeType === Node.TEXT_NODE).map((child) => child.nodeValue.trim()).join("");
    if (!text || !node.checkVisibility()) continue;
    const style = getComputedStyle(node);
    const [low, high] = [luminance(parse(style.color).rgb), luminance(ground(node))].sort((one, other) => one - other);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < 4.5) faint.push([text.slice(0, 40), style.color, Number(ratio.toFixed(2))]);
  }
  return faint;
};
