"""Twelve prompts of different kinds."""

from __future__ import annotations

PROMPTS = {
    "question": "What is the capital of Portugal, and what is it known for?",
    "story": "Write a short story about a lighthouse keeper who finds a bottle on the beach.",
    "list": "List ten animals that live in the sea.",
    "code": "Write a Python function that returns the n-th Fibonacci number.",
    "maths": "A train covers 120 km in 1.5 hours. How fast is it in metres per second?",
    "edit": "Repeat this text, writing 'ship' for 'boat': The boat left the harbour at dawn. The boat was full of "
    "salt. Nobody saw the boat again, but the salt came back with the tide, and with the salt came the birds.",
    "extract": "List the names in this text: Anna met Bruno in Lisbon. Bruno introduced her to Carla, who knew David.",
    "summary": "Summarise: Bees collect nectar and pollen. Nectar becomes honey, which feeds the hive in winter. "
    "Pollen feeds the young. Without bees many plants would bear no fruit.",
    "json": 'Write a JSON object with the keys "name", "age" and "city" for three people.',
    "repeat": "Say the word na sixteen times.",
    "unicode": "Translate to French and to Japanese, with emoji: Good morning, naïve little café owner! 🎉",
    "chat": "I have trouble falling asleep. What can I do about it?",
}
