"""Prompts of the kinds that the benchmarks time."""

from __future__ import annotations

PASSAGE = """\
The old lighthouse at Marrow Point was built in 1871 by a company of shipowners who had lost nine vessels in \
a single winter. Its tower is thirty-one metres high and painted in broad red and white bands, so that \
sailors can tell it from the grey stone tower at Hollin Head, twelve miles to the south. The first keeper, \
Edwin Farrow, lived there with his wife and four children for twenty-six years. He kept a diary in which he \
noted the weather, the passing ships and the price of lamp oil. On the night of 3 November 1888 the lamp \
failed during a storm, and Farrow burned his own furniture on the gallery until morning to keep a light \
showing. Every ship came safely into the harbour. The company gave him a silver watch, which is now in the \
town museum together with the diary. In 1934 the oil lamp was replaced by an electric one, and in 1986 the \
last keeper left, because the light had become automatic. Today the tower belongs to the town. Visitors can \
climb the one hundred and fifty-two steps on Saturdays and Sundays between April and October, when the \
weather is good enough and a volunteer is there to open the door."""

EDIT = [
    f"Repeat this text exactly, but write 1872 for 1871, Edward for Edwin, and seven for nine:\n\n{PASSAGE}",
    f"Copy this text word for word, replacing 'lighthouse' with 'beacon' and 'silver' with 'golden':\n\n{PASSAGE}",
]

CHAT = [
    "What should I see in Lisbon if I only have two days?",
    "Explain to a child why the sky is blue.",
    "I have trouble falling asleep. What can I do about it?",
    "Give me three ideas for a birthday party at home.",
]

CODE_LISTING = """\
class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance += amount
        return self.balance

    def withdraw(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance -= amount
        return self.balance
"""

KINDS = {
    "edit": EDIT,
    "extract": [
        f"List every sentence of this text that contains a year, word for word:\n\n{PASSAGE}",
        f"Quote the part of this text that tells what happened during the storm:\n\n{PASSAGE}",
    ],
    "code": [
        f"Add a method transfer(self, other, amount) to this class and show the whole class:\n\n{CODE_LISTING}",
        "Write Python functions that compute the sum, the mean, the median and the variance of a list of numbers.",
    ],
    "question": CHAT[:2],
    "story": [
        "Write a story about a fox who finds a map in an old boat.",
        "Tell me a story about two sisters who run a bakery in the mountains.",
    ],
    "translate": [
        "Translate into French: The lamp failed during a storm, and the keeper burned his furniture until morning.",
        "Translate into Spanish: Visitors can climb the steps on Saturdays and Sundays between April and October.",
    ],
}
"""Two prompts of each kind of work."""
