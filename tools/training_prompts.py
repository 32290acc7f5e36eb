"""Write varied prompts for training the shipped head: python tools/training_prompts.py OUT.jsonl.

Prompts of seven kinds, put together from the lists below. None is one of `benchmarks/held_out.py`.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from pathlib import Path

THINGS = """\
rain|snow|thunder|volcanoes|earthquakes|glaciers|deserts|coral reefs|rainforests|rivers|tides|the moon|comets|
black holes|the northern lights|gravity|magnets|electricity|batteries|solar panels|wind turbines|nuclear power|
steam engines|jet engines|submarines|bridges|skyscrapers|tunnels|lighthouses|canals|satellites|telescopes|
microscopes|cameras|radios|telephones|the internet|search engines|passwords|encryption|robots|computers|
spreadsheets|barcodes|clocks|calendars|maps|compasses|paper|ink|glass| concrete|steel|plastic|rubber|silk|wool|
cotton|soap|salt|sugar|honey|chocolate|coffee|tea|cheese|yoghurt|wine|vinegar|olive oil| potatoes|rice|wheat|
apples|lemons|mushrooms|garlic|spices|ants|spiders|butterflies|owls|eagles|penguins|parrots|whales|dolphins|
sharks| octopuses|salmon|frogs|snakes|turtles|crocodiles|bats|wolves|foxes|bears|elephants|giraffes|horses|cows|
sheep|goats|dogs|camels| dinosaurs|oak trees|roses|cacti|seaweed|bacteria|viruses|vaccines|antibiotics|vitamins|
sleep|dreams|memory|hunger|muscles|bones|the heart|the lungs|the brain|teeth|skin|hair|allergies|headaches|stress|
habits|languages|alphabets|writing|printing|libraries|museums| theatres|opera|jazz|pianos|drums|painting|
sculpture|photography|poetry|novels|chess|football|tennis|swimming|marathons|the Olympic Games|money|banks|taxes|
insurance|markets|trade|factories|farming|irrigation|fishing|forests|recycling|pollution|cities|villages|
railways|airports|ships|cars|roads|laws|courts|elections|parliaments|the United Nations|schools|universities|
hospitals|newspapers| advertising|friendship|kindness|courage|humour|curiosity|boredom|happiness|grief|anger|
justice|freedom"""

PEOPLE = """\
Isaac Newton|Ada Lovelace|Charles Darwin|Albert Einstein|Galileo Galilei|Leonardo da Vinci|Florence Nightingale|
Nelson Mandela|Mahatma Gandhi|Abraham Lincoln|Cleopatra|Julius Caesar|Joan of Arc|William Shakespeare|Jane Austen|
Johann Sebastian Bach|Ludwig van Beethoven|Vincent van Gogh|Frida Kahlo|Alan Turing|Grace Hopper|Nikola Tesla|
Thomas Edison|Amelia Earhart|Neil Armstrong|Socrates| Aristotle|Confucius|Marco Polo|Rosa Parks|Louis Pasteur|
Alexander Fleming|Rachel Carson|Jane Goodall|Stephen Hawking"""

TASKS = """\
learn a new language|prepare for a job interview|save money every month|start running|sleep better|cook for ten
guests|bake a cake|plan a birthday party|move to another city|choose a laptop|write a good email|give a short
speech|study for an exam|make new friends|train a puppy|grow tomatoes on a balcony|repair a flat tyre|paint a
room|clean a carpet|organise a small kitchen| pack for a holiday|travel cheaply|read more books|drink less coffee|
eat more vegetables|learn to swim|take better photographs|start a blog|sell old furniture|plant a tree|compost at
home|save water|remember names|deal with a noisy neighbour|calm down before a test|stop procrastinating|write a
diary|learn the guitar|teach children about money|plan meals for a week|use a library|set up a home office|care
for houseplants|brew good tea|fix a leaking tap|iron a shirt|wrap a present|apologise to a friend|ask for a pay
rise|run a meeting"""

HEROES = """\
a young fisherman|an old lighthouse keeper|a lost puppy|a girl who collects stones|a shy dragon|a librarian|a
clumsy wizard|two brothers|a retired astronaut|a baker|a street musician|a queen without a kingdom|a talking tree|
a nurse on her first day|a boy with a paper boat|a detective|a painter who lost her colours|a postman|a gardener|
a kite maker|a cat that lives in a theatre|a taxi driver|a beekeeper|a carpenter|a student far from home|a snail
in a hurry|a tired superhero|an inventor|a shepherd|a mermaid|a chess player|a train conductor|a grandmother|a
travelling tailor|a penguin|a small robot|a ghost who likes tea|a soldier coming home|a beggar|a twin"""

PLACES = """\
in a village by the sea|in a city of glass|on a mountain|in a forest in winter|on a small island|in an empty
museum|on a ship|in a desert|in an old castle|at a busy market|in a hospital at night|under the sea|in a library|
on a farm|on a train|in a school|in the year 2300|during a storm|on the first day of spring|in a quiet suburb|on
another planet|in a lighthouse|in a kitchen|on a bridge"""

EVENTS = """\
who finds a strange key|who must tell the truth|who learns to trust others|who gets lost|who keeps a secret|who
receives a letter from the future|who saves a friend|who is afraid of the dark|who wins an unexpected prize|who
has one wish|who forgets everything|who builds something impossible|who meets an old enemy|who hears music that
nobody else hears|who loses a precious ring|who has to choose between two paths|who makes a mistake and repairs
it|who waits for someone|who discovers a hidden door|who wants to fly"""

FORMS = """\
short story|fairy tale|fable|bedtime story|poem|funny story|ghost story|dialogue|diary entry|letter|science
fiction story|adventure story"""

LANGUAGES = "Python|Python|Python|Python|JavaScript|Java|C++|Rust|Go|TypeScript|Ruby"

JOBS = """\
reverses a string|returns the largest number in a list|computes the factorial of a number|computes the n-th
Fibonacci number|sorts a list of names by length|checks whether a number is prime|finds all divisors of a number|
merges two sorted lists|removes vowels from a string|counts the letters of a string|converts Celsius to
Fahrenheit|converts a number to binary|finds the second largest value|checks whether two words are anagrams|
flattens a nested list|rotates a list by n places|computes the average and the median|groups words by their first
letter|validates an email address|validates a password|generates a random password|reads a JSON file|writes a
list to a text file|downloads a web page|parses a date|returns the days between two dates|computes the area of a
circle|multiplies two matrices|transposes a matrix|searches a word in a grid|implements a stack|implements a
queue|implements a linked list|implements a binary tree with insert and search|implements bubble sort|implements
quicksort|implements merge sort|finds the shortest path in a graph| computes the edit distance between two words|
checks balanced brackets|encodes text with a Caesar cipher|compresses a string by run lengths|prints a
multiplication table|prints a triangle of stars|simulates rolling dice|simulates a coin toss a thousand times|
plays guess the number|plays hangman|keeps a to-do list|keeps a contact list|computes compound interest|splits a
bill among friends|converts Roman numerals|sums the digits of a number|finds duplicates in a list|finds the
longest word in a sentence|capitalises every word|shuffles a deck of cards|caches the results of a slow function|
retries a failing call three times|renames all files in a folder|prints a directory tree|counts the lines of a
file|formats a number with thousands separators|computes the dot product of two vectors|checks whether a year is
a leap year|computes the greatest element of every row|draws a bar chart of monthly sales"""

CODE_ASKS = [
    "Write a {language} function that {job}.",
    "Write a {language} program that {job}. Add comments.",
    "Write {language} code that {job}, and explain how it works.",
    "How do I write a {language} function that {job}?",
    "Show me a short example in {language} that {job}.",
    "Write a {language} function that {job}, with a test.",
    "Please write a {language} script that {job} and prints the result.",
]

OTHER_CODE = """\
Write a SQL query that lists all {things} sold in the last month.|Write a SQL query that counts the {things} per
country and sorts the result.|Create a SQL table for {things} with five columns and insert three rows.|Write a
CSS rule that centres a box about {things}.|Write an HTML page about {things} with a heading, a paragraph and a
list.|Write a Bash script that makes a backup of a folder named {things}.|Write a regular expression for a line
about {things} and a year, and explain it.|Write a Python class for {things} with three methods.|Write a JSON
object that describes {things}.|Explain what a loop is in programming, using {things} as an example.|Explain
recursion with an example about {things}.|Write a Python dictionary about {things} and loop over it."""

QUESTION_ASKS = [
    "What are {thing}?",
    "Tell me about {thing}.",
    "Explain {thing} to a child.",
    "Explain how {thing} came to be as important as today.",
    "Why do people care about {thing}?",
    "What is the history of {thing}?",
    "Give me five facts about {thing}.",
    "What are the advantages and disadvantages of {thing}?",
    "How have {thing} changed over the last hundred years?",
    "What would the world be like without {thing}?",
    "Describe {thing} in three sentences.",
    "What is the most surprising fact about {thing}?",
    "Compare {thing} and {other}.",
    "What do {thing} and {other} have in common?",
    "Write a short introduction to {thing}.",
    "What should everybody know about {thing}?",
    "How do scientists study {thing}?",
    "Write a paragraph about {thing} for a school newspaper.",
    "Which problems come with {thing}, and how can they be solved?",
    "How does one explain the difference between {thing} and {other}?",
    "Who was {person}?",
    "Why is {person} still famous today?",
    "What can we learn from the life of {person}?",
    "How can I {task}?",
    "Give me some tips on how to {task}.",
    "What is the best way to {task}?",
    "I want to {task}. Where should I start?",
    "Make a step-by-step plan to {task}.",
    "What mistakes do people make when they {task}?",
    "My friend wants to {task}. What should I tell her?",
]

STORY_ASKS = [
    "Write a {form} about {hero} {event}.",
    "Write a {form} set {place} about {hero}.",
    "Tell me a {form} about {hero} {place}.",
    "Write the beginning of a {form} about {hero} {event}.",
    "Write a {form} about {hero} and {rival} {place}.",
    "Invent a {form} in which {hero} meets {rival}.",
    "Write a {form} about {thing}.",
    "Describe {hero} {event} in two paragraphs.",
    "Write a {form} that ends with {hero} going home.",
]

NAMES = "Anna|Ben|Chloe|David|Emma|Farid|Grace|Hugo|Ivy|Jamal|Kira|Leo|Nina|Omar|Paula|Sam|Tara|Victor|Wendy|Yusuf"
GOODS = """\
apples|notebooks|tickets|cups of tea|bricks|stickers|marbles|loaves of bread|candles|flowers|books|cookies|stamps|
balloons| toy cars"""

MATHS_ASKS = [
    "{name} has {a} {goods} and buys {b} more. Then she gives {c} away. How many are left?",
    "A box holds {a} {goods}. How many {goods} are in {b} boxes? Show the calculation.",
    "{name} shares {p} {goods} equally among {b} friends. How many does each one get?",
    "One of the {goods} costs {a} cents. How much do {b} of them cost in euros?",
    "Solve {b}x + {a} = {p} for x.",
    "Solve the equation {b}(x - {c}) = {a} step by step.",
    "What is {a} times {b}? Explain how to do it in your head.",
    "What is {c}% of {p}?",
    "A price of {p} dollars rises by {c} percent. What is the new price?",
    "A train travels {p} kilometres in {c} hours. What is its average speed?",
    "{name} walks {c} km in the morning and {b} km in the evening. How far does he walk in {a} days?",
    "Find the area and the perimeter of a rectangle of {a} by {b} metres.",
    "Find the area of a triangle with base {a} and height {b}.",
    "What is the volume of a box of {a} by {b} by {c} centimetres?",
    "Find the least common multiple of {a} and {b}.",
    "Write {p} as a product of prime numbers.",
    "Simplify the fraction {a}/{p}.",
    "What is the average of {a}, {b}, {c} and {p}?",
    "A recipe for {c} people needs {p} grams of flour. How much is needed for {b} people?",
    "{name} is {a} years old and her brother is {c} years younger. How old are they together?",
    "A bag has {a} red and {b} blue balls. What is the probability of drawing a red one?",
    "How many ways are there to arrange {c} {goods} in a row?",
    "Explain what a derivative is, and find the derivative of {c}x^2 + {b}x.",
    "Explain the Pythagorean theorem with a triangle of sides {c} and {b}.",
    "{name} reads {a} pages a day. How many days does a book of {p} pages take?",
    "Two numbers add up to {p} and differ by {c}. What are they?",
    "What comes next: {c}, {b}, {a}? Explain your rule.",
    "Write a word problem about {goods} with the answer {a}, and solve it.",
]

CHAT_ASKS = [
    "Hello! I have been thinking about {thing} all day. What do you think?",
    "I am bored. Suggest something to do that has to do with {thing}.",
    "Give me ten ideas for a party about {thing}.",
    "Write a polite email that invites a colleague to a talk about {thing}.",
    "Write a short review of a book about {thing}.",
    "Suggest five titles for an article about {thing}.",
    "Write a slogan for a campaign about {thing}.",
    "Write a product description for a board game about {thing}.",
    "Write interview questions for an expert on {thing}.",
    "List ten words that have to do with {thing} and explain each.",
    "I have to {task} by Friday and feel nervous. Can you help me?",
    "Make a weekly schedule for somebody who wants to {task}.",
    "Write a message to {name} that says I cannot come because I have to {task}.",
    "Make a quiz of five questions about {thing}, with answers.",
    "Write a table that compares {thing} and {other}.",
    "Make an outline of an essay about {thing}.",
    "Write a dialogue between {name} and a teacher about {thing}.",
    "Is it worth it to {task}? Give me two reasons for and two against.",
]

TEXT_ASKS = [
    "Summarise this text in one sentence:\n\n{text}",
    "What is this text about?\n\n{text}",
    "Rewrite this text in simpler words:\n\n{text}",
    "Translate this text into French:\n\n{text}",
    "Translate this text into Spanish:\n\n{text}",
    "Repeat this text and correct every mistake:\n\n{text}",
    "Make a list of the main points of this text:\n\n{text}",
    "Write a title for this text and repeat it:\n\n{text}",
    "Continue this text:\n\n{text}",
    "Ask three questions about this text and answer them:\n\n{text}",
    "List the names in this text:\n\n{text}",
    "Rewrite this text as a friendly letter:\n\n{text}",
]

SENTENCES = [
    "{name} moved here {c} years ago to work on {thing}.",
    "Every week {b} people come to talk about {thing}.",
    "Most of them say that {thing} matter more than {other}.",
    "The house behind the station has {b} rooms and a garden.",
    "On Mondays {name} and her neighbour try to {task}.",
    "It cost {p} euros, which was less than expected.",
    "In the evening they sell {goods} at the gate.",
    "Nobody knows why {thing} became so popular there.",
    "The mayor, {name} Brown, promised to look into it.",
    "There is a small exhibition about {thing} on the first floor.",
    "If it rains, the meeting takes place {place}.",
    "{name} wrote {c} articles about {other} last year.",
]


def _list(words: str) -> list[str]:
    return [" ".join(word.split()) for word in words.split("|")]


def _fields(dice: random.Random) -> dict[str, object]:
    """One of each list, and numbers."""
    lists = {"person": PEOPLE, "task": TASKS, "place": PLACES, "event": EVENTS, "form": FORMS, "name": NAMES}
    lists |= {"goods": GOODS, "language": LANGUAGES, "job": JOBS}
    one: dict[str, object] = {field: dice.choice(_list(words)) for field, words in lists.items()}
    one["thing"], one["other"] = dice.sample(_list(THINGS), 2)
    one["hero"], one["rival"] = dice.sample(_list(HEROES), 2)
    return one | {
        "a": dice.randint(12, 60),
        "b": dice.randint(3, 25),
        "c": dice.randint(2, 9),
        "p": dice.randint(6, 60) * 12,
    }


def _text(dice: random.Random) -> str:
    """Some sentences about the same people and things."""
    fields = _fields(dice)
    return " ".join(sentence.format(**fields) for sentence in dice.sample(SENTENCES, dice.randint(3, 6)))


def _from(asks: list[str]) -> Callable[[random.Random], str]:
    return lambda dice: dice.choice(asks).format(text=_text(dice), **_fields(dice))


def _other_code(dice: random.Random) -> str:
    return dice.choice(_list(OTHER_CODE)).format(things=dice.choice(_list(THINGS)))


KINDS: list[tuple[int, Callable[[random.Random], str]]] = [
    (26, _from(QUESTION_ASKS)),
    (18, _from(STORY_ASKS)),
    (15, _from(CODE_ASKS)),
    (5, _other_code),
    (18, _from(MATHS_ASKS)),
    (9, _from(CHAT_ASKS)),
    (9, _from(TEXT_ASKS)),
]
"""Of a hundred prompts so many, and how one is made."""


def prompts(count: int, seed: int) -> list[str]:
    """So many different prompts, in an order without pattern."""
    dice, found = random.Random(seed), dict.fromkeys(list[str]())
    weights, makers = zip(*KINDS, strict=True)
    while len(found) < count:
        found[dice.choices(makers, weights)[0](dice)] = None
    return list(found)


def main() -> None:
    """Write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    lines = [json.dumps({"prompt": prompt}, ensure_ascii=False) for prompt in prompts(options.count, options.seed)]
    options.out.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
