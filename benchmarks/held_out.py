"""Sixty prompts of six kinds, written for this project, that no training ever saw; heads are judged on them."""

from __future__ import annotations

QUESTION = [
    "Why do cats purr?",
    "What is the difference between weather and climate?",
    "How does a bicycle stay upright when it moves?",
    "Who was Marie Curie, and why is she remembered?",
    "What should I pack for a week of hiking in the mountains?",
    "How can I keep basil alive on a kitchen windowsill?",
    "Explain what inflation is to someone who has never studied economics.",
    "What are the main causes of the decline of bees?",
    "Why does bread rise, and what can go wrong?",
    "What happens in the body during a fever?",
]

STORY = [
    "Write a short story about a clockmaker who repairs the last clock in a deserted town.",
    "Tell me a story about two sisters who find a map in their grandmother's attic.",
    "Write the opening of a mystery set on a night train through the snow.",
    "Write a fable about a heron and a frog that teaches patience.",
    "Tell a story about a robot gardener who discovers an unknown flower.",
    "Write a letter from a sailor to his daughter after a long storm.",
    "Write a bedtime story about a cloud that was afraid of heights.",
    "Write a scene in which an old baker teaches her craft to a nervous apprentice.",
    "Write a story about the first school on the moon.",
    "Tell a story about a violin that remembers every song played on it.",
]

CODE = [
    "Write a Python function that checks whether a string is a palindrome, with a docstring.",
    "Write a Python class for a bank account with methods to deposit, withdraw and show the balance.",
    "Write a JavaScript function that removes duplicates from an array, and explain it.",
    "Write a Python function that counts how often each word occurs in a text file.",
    "Show how to read a CSV file in Python and print the sum of one column.",
    "Write a SQL query that finds the three customers who spent the most last year.",
    "Write a Python program that plays rock, paper, scissors against the user.",
    "Write a binary search in Python and explain why it is fast.",
    "Write an HTML page with a form that asks for a name and an email address.",
    "Write a Python decorator that measures how long a function takes.",
]

MATHS = [
    "A shop sells pens at 3 for 2 euros. How much do 21 pens cost? Show your steps.",
    "Solve the equation 5x - 7 = 3x + 9 step by step.",
    "A rectangle is 4 cm longer than it is wide and has an area of 96 square cm. Find its sides.",
    "What is the probability of throwing at least one six with two dice? Explain.",
    "Tom is twice as old as Mia. In six years their ages add up to 36. How old are they?",
    "Convert 72 kilometres per hour to metres per second and explain the steps.",
    "Find the greatest common divisor of 84 and 126 and show how.",
    "A tank holds 240 litres and drains at 8 litres per minute. How long until it is a quarter full?",
    "What is 15 percent of 260, and how do you work it out without a calculator?",
    "Add the fractions 2/3, 1/4 and 5/6 and simplify the result, step by step.",
]

_GARDEN = """\
The community garden on Alder Street was opened in May 2009 by Ruth Keller, a retired nurse, and her neighbour Samir \
Haddad. There were twelve plots at first, each four metres long. Today there are thirty-one, and a waiting list of \
nineteen families. Every Saturday at nine the members meet at the blue shed, share tools and seeds, and decide what \
needs doing. In the dry summer of 2018 they built a tank that holds six thousand litres of rain from the roof of the \
school next door. The tomatoes are the pride of the garden, although the rabbits prefer the lettuce."""

_FERRY = """\
The night ferry Aurora leaves Kiel at 19:30 and reaches Oslo the next morning at 10:00. It carries 1,800 passengers, \
420 cars and a crew of 160. Captain Ingrid Solberg has sailed the route for eleven years. In winter she watches for \
ice near the mouth of the fjord, and in summer for sailing boats whose crews are asleep. The ferry has two \
restaurants, a small cinema and a library with four hundred books that travellers have left behind."""

_CODE = """\
def total_price(items, discount=0):
    total = 0
    for item in items:
        total = total + item["price"] * item["count"]
    if discount > 0:
        total = total - total * discount / 100
    return total


def print_receipt(items, discount=0):
    for item in items:
        print(item["name"], item["count"], item["price"])
    print("Total:", total_price(items, discount))"""

_MEMO = """\
Dear team, the office move will take place on Friday 14 March. Please pack your desk by Thursday noon and label every \
box with your name and your new room number. Maria Lopez hands out boxes and tape in room 204. Computers are moved by \
the company Hartmann; do not unplug them yourself. On Friday everyone works from home. From Monday 17 March our \
address is 8 Canal Road, and the telephone numbers stay the same. Questions go to Peter Osei. Kind regards, Julia \
Stein"""

_BIRDS = """\
The common swift spends almost its whole life in the air. It eats, drinks and even sleeps while flying, and lands only \
to breed. Swifts weigh about 40 grams and can live for twenty years. They arrive in Europe in early May and leave \
again in August for Africa south of the equator. A pair raises two or three young in a hole under a roof. When it \
rains for days, the parents fly hundreds of kilometres around the storm to find insects, and the young can wait for \
them without food for up to a week."""

EDIT = [
    f"Copy this text, writing 'Elm Street' for 'Alder Street' and 2010 for 2009:\n\n{_GARDEN}",
    f"Repeat this text exactly, but change 'Saturday' to 'Sunday' and 'blue' to 'green':\n\n{_GARDEN}",
    f"Copy this text word for word, replacing 'Aurora' with 'Boreas' and 'eleven' with 'fifteen':\n\n{_FERRY}",
    f"Repeat this text, writing 'Bergen' for 'Oslo':\n\n{_FERRY}",
    f"Rewrite this code with the parameter discount renamed to rebate, and nothing else changed:\n\n{_CODE}",
    f"Copy this code and add a comment line above each function:\n\n{_CODE}",
    f"Copy this message, with the date changed to Friday 21 March:\n\n{_MEMO}",
    f"Repeat this message exactly, but write 'Carla Mendes' for 'Maria Lopez':\n\n{_MEMO}",
    f"Copy this text, writing 'swallow' for 'swift':\n\n{_BIRDS}",
    f"Repeat this text exactly, with every number written out in words:\n\n{_BIRDS}",
]

EXTRACT = [
    f"List all numbers in this text and what they count:\n\n{_GARDEN}",
    f"Quote the sentence that mentions rain, word for word:\n\n{_GARDEN}",
    f"Quote the sentences of this text that contain a number:\n\n{_FERRY}",
    f"Make a list of everything the ferry carries or has on board:\n\n{_FERRY}",
    f"List the names of all functions and variables in this code:\n\n{_CODE}",
    f"Quote the lines of this code that change the variable total:\n\n{_CODE}",
    f"List what each person mentioned in this message does:\n\n{_MEMO}",
    f"Quote every sentence of this message that tells the reader to do something:\n\n{_MEMO}",
    f"Quote the two sentences about where swifts live at which time of the year:\n\n{_BIRDS}",
    f"List the facts about swifts in this text as bullet points, in its own words:\n\n{_BIRDS}",
]

OPEN = ("question", "story", "code", "maths")
"""Kinds whose answers stand nowhere in the prompt."""

HELD_OUT = {
    "question": QUESTION,
    "story": STORY,
    "code": CODE,
    "maths": MATHS,
    "edit": EDIT,
    "extract": EXTRACT,
}
