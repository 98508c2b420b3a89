"""The words in which judges announce a verdict, in the languages they are met in."""

import re


def either(*words: str) -> str:
    """A pattern for one of these, the longest that fits, in verbose syntax; an underscore stands for a space."""
    alternatives = sorted(" ".join(words).split(), key=len, reverse=True)
    return "(?:" + "|".join(re.escape(each).replace("_", "[ ]") for each in alternatives) + ")"


#: What a number is called that is a verdict.
SCORE = either(
    "score scores rating grade",
    "Bewertung Gesamtbewertung Punktzahl Gesamtnote Gesamtpunktzahl puntuación puntuacion puntaje calificación",
    "valoración pontuação avaliação punteggio valutazione ocena оценка балл beoordeling skor puan điểm điểm_số",
    "स्कोर अंक الدرجة التقييم ציון",
    "评分 给分 得分 分数 打分 評分 分數 スコア 評価 評点 採点 点数 得点 점수 평점 คะแนน",
)
#: The same, but of other numbers too: counted only where the number ends its clause, or has the scale's most after it.
LOOSE_SCORE = either(
    "note nota voto verdict evaluation assessment mark marks overall insgesamt 总体 总分 总评 總分 評定 평가"
)
#: What a decision is called.
DECISION = either(
    "verdict result judgment judgement decision conclusion assessment evaluation grade outcome answer final_answer",
    "winner choice preference preferred_response better_response best_response better best preferred",
    "Urteil Ergebnis Gewinner résultat gagnant veredicto resultado ganador вердикт победитель результат",
    "结论 判断 判定 结果 裁决 答案 更好的回答 更好的回复 胜者 勝者 結論 判定結果 결과 판정",
)
#: What makes a score that of the whole, before its name.
FINAL = either(
    "final overall total global general finale globale totale gesamt endgültige endgültig итоговая общая",
    "最终 最終 总体 总 综合 総合 最后 整体 최종 종합",
)
#: What may stand there without making it the score of a part, as in "clarity score".
NEUTRAL = either(
    "my the this a an quality judge is and so your its la le die il моя 的 considered honest assigned given suggested",
    "numeric numerical resulting weighted average rounded corresponding appropriate same",
)
#: Between the name and the verdict.
IS = either(
    "is was of as at would_be should_be will_be therefore thus ist est es é è lautet составляет это to_be",
    "为 是 は が 는 은",
)
#: Between the ends of a range.
TO = either("- ~ 〜 to or through bis oder à ou или 至 到 或 から")
#: Between a number and the most there is.
OUT_OF = r"(?:\s?/\s?|\s(?:" + either("out_of of von sur из de su din van z av über uit") + r")\s)"
#: "I would give it an 8": verb, then what may stand before the number.
GIVE = either(
    "rate rated score scored grade give gave giving assign assigned award awarded deserve deserves merit merits",
    "earn earns receive receives get gets donne mets gebe vergebe doy daría dou darei assegno ставлю поставил",
)
GIVEN = either(
    "it this that the a an one response answer as at with score rating of solid strong weak only lui ich eine einen",
    "dieser antwort réponse cette à une un le la esta respuesta a_esta ответу этому оценку resposta alla risposta",
)
#: After such a number.
AFTER_GIVEN = either("points point pts because for since overall Punkte Punkten puntos баллов балла pontos punti")
