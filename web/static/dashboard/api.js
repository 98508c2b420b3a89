// Requests to the API. An error response becomes a Problem with the server's message.

export class Problem extends Error {
  constructor(detail, status, field = "", told = null) {
    super(detail);
    Object.assign(this, { status, field, told });
  }
}

/** Send a request and return the JSON of the response. Throws a Problem. */
export async function ask(path, method = "GET", body = undefined) {
  let reply;
  try {
    reply = await fetch(path, { method, body, headers: body === undefined ? {} : { "Content-Type": "application/json" } });
  } catch {
    throw new Problem("The server does not answer.", 0);
  }
  const type = reply.headers.get("Content-Type") ?? "";
  const told = type.includes("json") ? await reply.json().catch(() => null) : null;
  if (reply.ok && told !== null) return told;
  if (reply.status === 401) throw new Problem("The token is no longer valid: reload the page and enter another token.", 401);
  throw new Problem(told?.detail ?? `The server answered ${reply.status}.`, reply.status, told?.field ?? "", told);
}
