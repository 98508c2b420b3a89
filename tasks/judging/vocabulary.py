"""Vocabulary of verdicts: the words with which judges announce a verdict, in the languages seen so far."""

import re


def any_of(*words: str) -> str:
    """Return a verbose-syntax pattern that matches the longest of the words; an underscore stands for a space."""
    alternatives = sorted(" ".join(words).split(), key=len, reverse=True)
    return "(?:" + "|".join(re.escape(each).replace("_", "[ ]") for each in alternatives) + ")"


#: Names of a number that is a verdict.
SCORE = any_of(
    "score scores rating grade",
    "Bewertung Gesamtbewertung Punktzahl Gesamtnote Gesamtpunktzahl puntuación puntuacion puntaje calificación",
    "valoración pontuação avaliação punteggio valutazione ocena оценка балл beoordeling skor puan điểm điểm_số",
    "स्कोर अंक الدرجة التقييم ציון",
    "评分 给分 得分 分数 打分 評分 分數 スコア 評価 評点 採点 点数 得点 점수 평점 คะแนน",
)
#: Ambiguous names of a score: they count only where the number ends its clause, or the scale's maximum follows it.
LOOSE_SCORE = any_of(
    "note nota voto verdict evaluation assessment mark marks overall insgesamt 总体 总分 总评 總分 評定 평가"
)
#: Names of a decision in words.
DECISION = any_of(
    "verdict result judgment judgement decision conclusion assessment evaluation grade outcome answer final_answer",
    "winner choice preference preferred_response better_response best_response better best preferred",
    "Urteil Ergebnis Gewinner résultat gagnant veredicto resultado ganador вердикт победитель результат",
    "结论 判断 判定 结果 裁决 答案 更好的回答 更好的回复 胜者 勝者 結論 判定結果 결과 판정",
)
#: Words before a score's name that mark it as the overall score.
FINAL = any_of(
    "final overall total global general finale globale totale gesamt endgültige endgültig итоговая общая",
    "最终 最終 总体 总 综合 総合 最后 整体 최종 종합",
)
#: Words allowed before a score's name that do not make it the score of an aspect, unlike "clarity" in "clarity score".
NEUTRAL = any_of(
    "my the this a an quality judge is and so your its la le die il моя 的 considered honest assigned given suggested",
    "numeric numerical resulting weighted average rounded corresponding appropriate same",
)
#: Words between the name and the verdict.
IS = any_of(
    "is was of as at would_be should_be will_be therefore thus ist est es é è lautet составляет это to_be",
    "为 是 は が 는 은",
)
#: Words between the ends of a range.
TO = any_of("- ~ 〜 to or through bis oder à ou или 至 到 或 から")
#: Words between a number and the maximum of its scale.
OUT_OF = r"(?:\s?/\s?|\s(?:" + any_of("out_of of von sur из de su din van z av über uit") + r")\s)"
#: Verbs of sentences like "I would give it an 8"; `GIVEN` has the words allowed between verb and number.
GIVE = any_of(
    "rate rated score scored grade give gave giving assign assigned award awarded deserve deserves merit merits",
    "earn earns receive receives get gets donne mets gebe vergebe doy daría dou darei assegno ставлю поставил",
)
GIVEN = any_of(
    "it this that the a an one response answer as at with score rating of solid strong weak only lui ich eine einen",
    "dieser antwort réponse cette à une un le la esta respuesta a_esta ответу этому оценку resposta alla risposta",
)
#: Words that may follow a number given in a sentence.
AFTER_GIVEN = any_of("points point pts because for since overall Punkte Punkten puntos баллов балла pontos punti")
