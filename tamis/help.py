"""An example for each command, shown at the end of its help."""

from __future__ import annotations

EXAMPLES = {
    "run": "tamis run gopher --input crawl/ --output clean/ --memory 8GB --rejects",
    "merge": "tamis merge clean/",
    "check": "tamis check recipe.yaml",
    "explain": "tamis explain gopher --input crawl/ --output clean/",
    "rethreshold": "tamis rethreshold clean/ --set gopher_quality.min_words=40",
    "verify": "tamis verify clean/",
    "profile": "tamis profile gopher --input crawl/ --rows 5000",
    "memory": "tamis memory --watch 5",
    "ops": "tamis ops gopher_quality",
    "recipes": "tamis recipes gopher",
    "report": "tamis report clean/ --rejects 3",
    "dashboard": "tamis dashboard clean/",
    "stats": "tamis stats crawl/ --html corpus.html",
    "head": "tamis head clean/ --fate dropped -n 3",
    "sample": "tamis sample clean/ -n 10 --seed 1",
    "grep": 'tamis grep "lorem ipsum" clean/ --in text -i',
    "why": "tamis why clean/ doc-17",
    "compare": "tamis compare clean/ clean-2/",
    "train-classifier": "tamis train-classifier --positive good.jsonl --negative bad.jsonl -o quality.model",
    "train-language-model": "tamis train-language-model --input texts/ -o english.model",
    "dedup exact": "tamis dedup exact crawl/ unique/",
    "dedup fuzzy": "tamis dedup fuzzy crawl/ unique/ --threshold 0.8 --memory 4GB",
    "dedup semantic": "tamis dedup semantic embedded/ unique/ --threshold 0.9",
    "dedup images": "tamis dedup images photos/ unique/",
    "dedup audio": "tamis dedup audio recordings/ unique/",
    "dedup video": "tamis dedup video clips/ unique/",
    "dedup explain": "tamis dedup explain unique/ doc-17",
}
