"""Sixty prompts of six kinds, written for this project, that `outrider bench` decodes. No head was trained on them.

The kinds differ in how much of an answer stands in its prompt: nearly all of it in `edit`, much in `summarise`, next to
nothing in the others; and `maths` and `code` repeat themselves more than `chat` and `question` do.
"""

from __future__ import annotations

CHAT = [
    "I start a new job on Monday and I am nervous. What can I do this weekend to feel better prepared?",
    "Can you suggest three quiet hobbies for somebody who sits in front of a screen all day?",
    "My neighbour's dog barks every morning at five. How do I bring it up without a quarrel?",
    "Help me write a friendly message to my landlord about a radiator that stays cold.",
    "We have eggs, spinach, old bread and half an onion. What could we cook tonight?",
    "Pretend that you run a small hotel in the Alps and answer my question: is breakfast included?",
    "I keep forgetting people's birthdays. Give me a simple system that I will really use.",
    "Write a toast of four sentences for my aunt, who retires after forty years as a bus driver.",
    "Should I learn the piano or the cello as an adult beginner? I live in a flat with thin walls.",
    "Let's play a game: describe an animal without naming it, and I will guess.",
]

LIBRARY = """\
The travelling library of Varn began in 1962 with a converted milk van and eight hundred books. Its first \
driver, Tove Lindahl, visited twenty-three villages in the course of a fortnight, and she kept a notebook of \
what every reader liked. When the snow closed the road over the pass, she carried a bag of books across on skis. \
In 1995 the council wanted to end the service, because fewer people borrowed books, but the villages collected \
four thousand signatures in a week. Today the library is an electric bus with three thousand books, a table for \
homework and a coffee machine. Its busiest stop is no village at all, but the car park of the sawmill, where \
workers swap crime novels during their lunch break."""

OYSTERS = """\
A grown oyster filters some one hundred and fifty litres of water a day. It feeds on algae and leaves the water \
clearer, so that light reaches the bottom and sea grass can grow. A hundred years ago the bay of Harrow held so \
many oysters that ships ran aground on their reefs. Then dredging, disease and dirty water destroyed nearly all \
of them. Since 2011 a group of fishermen and students has been bringing the reefs back. They collect shells from \
restaurants, dry them for a year in the sun and sink them in wire baskets on which young oysters settle. \
Fourteen baskets have become six hectares of reef. Crabs and bass have returned, and the waves that reach the \
shore behind the reefs are a third lower than before."""

MINUTES = """\
Minutes of the meeting of the cycling club on 9 May. Present were nineteen members; Hana Brezina was in the \
chair. The treasurer, Olu Adeyemi, reported that the club has 2,340 euros, which is 410 euros more than last \
year, mainly because the spring ride had more guests than expected. Two members asked for a second training \
evening. It was agreed to try Thursdays until the end of July. There was a long discussion about helmets: eleven \
members voted to require them on all rides, five voted against it and three abstained. The summer tour will go \
along the river to Melk, from 21 to 25 August; Pavel Kern books the rooms and needs the names by 15 June. The \
old club jerseys will be given to the school. The next meeting is on 6 June."""

BREAD = """\
Sourdough bread is older than writing. It rises through wild yeasts and bacteria that live in a mixture of flour \
and water, the starter, which a baker feeds every day and keeps for years. The yeasts make the gas that lifts \
the dough, and the bacteria make the acids that give the bread its taste and keep it from going mouldy. Because \
the dough needs many hours, much of the sugar in the flour is used up before the bread is baked. When cheap \
yeast from factories came up around 1870, most bakers gave up their starters, since a loaf was now finished in \
two hours. In recent years many have gone back to the slow way. Bakers lend each other starters, give them \
names, and a library in Belgium keeps more than a hundred of them in refrigerators, in case one is lost."""

TUNNEL = """\
The pedestrian tunnel under the river Aske was opened on 1 September 1911, at a time when three thousand dockers \
had to cross by ferry twice a day and lost wages whenever there was fog. It is four hundred and twenty-six \
metres long and lies twenty-four metres below the water. At both ends, lifts large enough for a horse and cart \
lead down. The walls are covered with tiles that show fish, crabs, rats, and one pair of old boots, which a \
worker is said to have left in the clay. In 1944 the tunnel served as a shelter for nine days. Since the docks \
moved to the coast, mostly visitors and cyclists use it, about one million of them every year. A repair that \
began in 2015 was meant to last two years and took eight."""

LETTER = """\
Dear Ms Okafor, thank you for your order of 3 February. Unfortunately the green desk lamp that you chose is not \
in stock, and our supplier in Porto cannot deliver it before the end of April. You have three choices. We can \
send you the same lamp in white or in dark blue at once. We can keep your order open and give you ten percent \
off when the lamp arrives. Or we can cancel the order and return the 64.90 euros that you paid within five days. \
The two light bulbs are already on their way and should reach you on Thursday. Please tell us by 20 February \
what you prefer; you can answer this message or telephone our office between nine and four. We are sorry for the \
trouble. Yours sincerely, Tomas Varga, customer service"""

GLACIER = """\
Scientists have weighed the Orrin glacier again, as they do at the end of every summer. They do it with stakes \
that are drilled twelve metres into the ice in spring: what sticks out in autumn has melted. This year the ice \
lost 2.7 metres on average, twice as much as in the years before 2000. The reasons are simple, says Ines Falk, \
who leads the group. Little snow fell in winter, dust from the desert made the surface dark in March, and the \
heat of July lasted for nineteen days. At the lower end, where a hut stood beside the ice in 1950, hikers now \
look down on a lake. Falk expects that the glacier will have broken into three parts by 2035. The villages below \
are building a reservoir, because the river will carry less water in late summer when the ice is gone."""

ORCHESTRA = """\
The orchestra of Lowmarket has no conductor, no hall and no budget. It has forty-one players between nine and \
eighty-three years of age, a barn that belongs to the clarinettist's brother, and one rule: whoever comes twice \
is a member. Rehearsals are on Wednesdays after milking time. The players choose the pieces by throwing dried \
beans into jars, and the librarian, Moira Quill, writes simpler parts for beginners overnight. At the winter \
concert, which three hundred people attended, the electricity failed in the second movement of a symphony. The \
players went on in the dark, since they knew the music by heart, and the tuba, it is said, has never again been \
so much in time. The money that was collected pays for strings, and for a stove."""

BEAVERS = """\
In the spring of 2019 two families of beavers were released beside a stream in the hills of Cant. Farmers had \
feared for their fields, and a fund was set up to pay for damage. In the five years since, the animals have \
built nine dams, the longest of them sixty metres wide. Behind the dams lie ponds with dragonflies, frogs and \
kingfishers. When heavy rain fell in October 2023, the flood reached the village of Bramley four hours later \
than it used to and stood forty centimetres lower. In the dry summer before, the stream was the only one in the \
valley that went on flowing. The fund has paid for eleven apple trees and one cellar. Seven of the ten farmers \
who had been against the beavers now say that they may stay."""

CHESS = """\
The longest game of correspondence chess in the district was played by two postmen who never met. Albert Finch \
worked in the north and Joseph Mbeki in the south, and from 1974 on each sent one move a month on a postcard, \
because they wanted to see whether the post could be trusted. Three cards were lost in sixteen years. When Finch \
retired in 1990, his successor found a card with a move addressed to nobody in particular and simply answered \
it; he did not know the rules, and had borrowed a book. Mbeki noticed at once that the style had changed, but \
said nothing and went on. The game ended in 1998 with a draw after two hundred and eleven moves. The cards hang \
in the main post office, in order, and children try to find the three that are missing."""

SUMMARISE = [
    f"Summarise this text in two sentences:\n\n{LIBRARY}",
    f"Give a short summary of the following text for a newsletter:\n\n{OYSTERS}",
    f"Summarise these minutes as a list of what was decided:\n\n{MINUTES}",
    f"Sum up the main points of this text in your own words:\n\n{BREAD}",
    f"Write a summary of this text in at most fifty words:\n\n{TUNNEL}",
    f"Summarise this letter for somebody who has no time to read it:\n\n{LETTER}",
    f"What are the most important facts in this report? Summarise them:\n\n{GLACIER}",
    f"Write a headline and a summary of three sentences for this story:\n\n{ORCHESTRA}",
    f"Summarise the text below, and keep all years and numbers:\n\n{BEAVERS}",
    f"Tell me briefly what happens in this text:\n\n{CHESS}",
]

STOCK = """\
item,shelf,count,price
hammer,A1,14,11.50
wood screws 4x40,A2,2300,0.04
measuring tape,A4,22,6.90
paint brush 50 mm,B1,61,3.20
sandpaper 120,B2,480,0.55
masking tape,B2,75,2.80
work gloves,C3,38,4.10
spirit level,C5,9,17.00"""

SETTINGS = """\
{
  "name": "weather-station",
  "interval_seconds": 60,
  "sensors": [
    {"kind": "temperature", "pin": 4, "unit": "celsius"},
    {"kind": "humidity", "pin": 5, "unit": "percent"},
    {"kind": "pressure", "pin": 17, "unit": "hectopascal"}
  ],
  "upload": {"server": "data.example.org", "port": 8443, "retries": 3},
  "log_file": "/var/log/station.log"
}"""

TIMER = """\
class Timer:
    def __init__(self, seconds):
        self.seconds = seconds
        self.elapsed = 0
        self.running = False

    def start(self):
        self.running = True

    def stop(self):
        self.running = False

    def tick(self):
        if self.running:
            self.elapsed += 1
        if self.elapsed >= self.seconds:
            self.running = False
            return True
        return False"""

EDIT = [
    f"Copy this text, but write 'Nils Berg' for 'Tove Lindahl' and 'he' for 'she':\n\n{LIBRARY}",
    f"Repeat this text word for word, with 'mussel' in place of 'oyster' everywhere:\n\n{OYSTERS}",
    f"List every person in these minutes and quote the sentence that mentions them:\n\n{MINUTES}",
    f"Copy this letter with every date moved by one month:\n\n{LETTER}",
    f"Quote the three sentences of this text that contain a year, exactly as they stand:\n\n{TUNNEL}",
    f"Print this table again, sorted as it is, with a last column that holds count times price:\n\n{STOCK}",
    f"Show this file again with the interval set to 30 and the pressure sensor on pin 18:\n\n{SETTINGS}",
    f"Rename the attribute elapsed to passed in this class and print all of it:\n\n{TIMER}",
    f"Add a method reset to this class and show the whole class:\n\n{TIMER}",
    f"Extract the item, the shelf and the count of everything that costs more than five euros:\n\n{STOCK}",
]

QUESTION = [
    "Why is the sea salty although rivers are not?",
    "What is the difference between a virus and a bacterium?",
    "How did people measure time before there were mechanical clocks?",
    "Why do leaves change their colour in autumn?",
    "Who invented the printing press, and what did it change?",
    "How does a refrigerator keep food cold?",
    "What is photosynthesis, and why does it matter to us?",
    "Why do some countries drive on the left side of the road?",
    "How are mountains made?",
    "What does a central bank do?",
]

MATHS = [
    "A train leaves at 9:40 and arrives at 13:05. How long is the journey? Show your steps.",
    "Solve the system x + y = 14 and 2x - y = 4 step by step.",
    "A jacket costs 80 euros and is reduced by 25 percent, then by 10 percent more. What does it cost now?",
    "How many different three-digit numbers can be made of the digits 1, 2, 3 and 4 if none is used twice?",
    "The angles of a triangle are in the ratio 2 : 3 : 4. Find all three angles.",
    "Three painters need 12 hours for a fence. How long do five painters need at the same speed?",
    "Find the sum of all whole numbers from 1 to 100 and explain the trick.",
    "A cube has a surface of 150 square centimetres. What is its volume?",
    "Divide 7/8 by 3/4 and explain every step.",
    "A ladder of 5 metres leans on a wall, and its foot is 3 metres away. How high does it reach?",
]

CODE = [
    "Write a Python function that returns the n most common words of a text as a list of pairs.",
    "Write a Python class Matrix with addition, multiplication and a readable string form.",
    "Write a JavaScript function that debounces another function, with an example of its use.",
    "Write a Python script that renames all photos in a folder by the date on which they were taken.",
    "Write a SQL schema for a small library with books, readers and loans.",
    "Write a Python function that parses a line of an access log into a dictionary.",
    "Write a C function that reverses a linked list in place, and comment each step.",
    "Write a Python generator that yields the prime numbers, and print the first twenty.",
    "Write an HTML page with a table of three products and some CSS that stripes its rows.",
    "Write unit tests in Python for a function add_vat(price, rate) with at least five cases.",
]

PROMPTS: dict[str, list[str]] = {
    "chat": CHAT,
    "summarise": SUMMARISE,
    "edit": EDIT,
    "question": QUESTION,
    "maths": MATHS,
    "code": CODE,
}
"""Kind -> ten prompts."""
