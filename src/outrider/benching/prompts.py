"""Prompts of six kinds, written for this project, that `outrider bench` decodes. No head was trained on them.

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
    "Yesterday I forgot my best friend's concert, and now she does not answer. How can I make up for it?",
    "My daughter is six and afraid of the dark. What can we say and do at bedtime?",
    "Imagine that you are an old oak in a city park, and tell me about your day.",
    "I have a free afternoon, ten euros and a bicycle. Plan something nice for my brother and me.",
    "Write a polite complaint to a railway about a train that was two hours late, and ask for my money back.",
    "Three of us share a kitchen, and nobody washes up. Suggest fair rules that we could try for a month.",
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

NOTICE = """\
Safety notice. The company Brewster calls back its kettle KT-30, which was sold in our shops between September \
and the middle of January. In some of these kettles the switch does not turn the power off when the water boils, \
so that the handle can melt. Until now seven cases are known; nobody was hurt. You find the model and a number of \
eight digits on a silver label under the base. If the number begins with 41 or 42, please stop using the kettle \
and pull the plug. Bring it back to any of our shops, with or without the box and the receipt, and you will get \
39.90 euros or a new kettle of the kind KT-31. If you cannot come, call 0800 555 119 before the end of May, and a \
courier will collect it at no cost. Kettles with other numbers are safe. We apologise to all customers."""

TALK = """\
Mrs Novak: Good morning, Mr Adler. I wanted to ask you about the beehives that you mean to put in the yard.
Mr Adler: Two small ones, behind the shed. They would arrive in April. Are you worried?
Mrs Novak: A little. My grandson plays there, and he is allergic to wasps.
Mr Adler: Wasps and bees are not the same, but I see your point. What if I put the hives on the roof instead?
Mrs Novak: Is that allowed? The caretaker did not even want my flower pots up there.
Mr Adler: I asked him on Friday. He says yes if the weight is below sixty kilograms and if I sign for damage.
Mrs Novak: Then I have nothing against it. And how much honey do two hives make?
Mr Adler: Some twenty kilograms in a good year. Every family in the house would get two jars, and you get three.
Mrs Novak: In that case I shall bake the bread. Let us tell the others at the meeting on Tuesday."""

RAVENS = """\
Can ravens plan? To find out, Lise Holm and her students at the field station of Egge gave five hand-raised birds \
a choice. In one room a box with food could be opened with a flat stone only. An hour before they were let in, the \
ravens were shown a tray with a flat stone, three useless toys and a small piece of bread, and they could take one \
thing. Four of the five took the stone in more than eight of ten trials, although they could have eaten the bread \
at once. When seventeen hours lay between the tray and the box, they did so nearly as often. The fifth bird always \
took the bread; she had learnt to steal stones from the others. Critics answer that the stone may simply have come \
to mean food to the birds. Holm will repeat the trial with tools that the ravens have never seen used."""

SALT = """\
For six hundred years the town of Hallbrunn lived on salt. Water from a spring under the market place was boiled \
in iron pans as large as a room, for nine hours and over fires of beech wood, until the salt fell out. It was \
packed in cones, dried and carried over the mountains by mules. By 1700 no tree was left within a day's walk, so \
the town laid a pipe of four thousand hollow logs and let the water run to the forests instead, thirty kilometres \
away. Boys walked along it every day and listened for leaks. Cheap salt from the sea and the railway ended the \
trade in 1868. The last pan stands in the museum. The spring still runs, and since 1923 guests have come to bathe \
in it; they pay more for an hour in the water than a mule's load of salt once cost."""

DIARY = """\
12 June. Rain again, and the tent leaks where the bear leaned on it. We counted 61 seals on the north beach before \
breakfast. Petra has repaired the radio with a fork. 13 June. First dry day for a week. We walked to the cape, nine \
hours there and back, and found the old hut of the whalers. Its roof is gone, but the stove could be saved. 14 June. \
Fog. Karim burned the rice, so we ate the chocolate that was meant for Sunday. Only 40 seals. 15 June. The supply \
boat did not come. We have flour for eight days, tea for thirty and no sugar. 16 June. Moved into the hut with the \
tent as a roof; the stove works, and for the first time all socks are dry. 17 June. 75 seals, eleven of them pups, \
more than in any year since 2004. In the evening the boat arrived with sugar, letters and a new tent."""

STREET = """\
Since March no cars have driven through Tanner Street, and the city has now published what came of it. Before the \
trial, 9,200 cars a day used the four hundred metres between the theatre and the bridge. About a third of them now \
take the ring road, where journeys last two minutes longer; another third have disappeared, because people walk, \
cycle or take the tram. Bus line 5 is on time in 94 of 100 cases, up from 71. Shops tell different stories. Cafes \
and the bookshop sold a fifth more than in the year before, but the furniture shop lost a quarter of its customers \
and wants parking spaces for deliveries. Of 1,480 residents who answered a survey, 63 percent want to keep the \
street as it is, and 22 percent do not. The council decides in November. Until then the planters stay."""

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
    f"What does this notice ask customers to do? Summarise it in a few lines:\n\n{NOTICE}",
    f"Summarise this conversation, and say what the two agree on:\n\n{TALK}",
    f"Explain in three sentences what was tried here and what came of it:\n\n{RAVENS}",
    f"Shorten this text to a third of its length:\n\n{SALT}",
    f"Retell this diary as one paragraph for the family at home:\n\n{DIARY}",
    f"Summarise the arguments for and against that this report gives:\n\n{STREET}",
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

RECIPE = """\
Potato pancakes for four people
800 g floury potatoes
1 large onion
2 eggs
60 g flour
1 teaspoon salt
6 tablespoons oil
Grate 800 g of potatoes and the onion into a cloth and press the water out. Mix them with 2 eggs, 60 g of flour and \
the salt. Heat 2 tablespoons of oil in a pan, bake three pancakes for 4 minutes on each side, and go on until the \
dough is used up. Serve them hot with 300 g of apple sauce."""

BUSES = """\
Line 7, Monday to Friday
Harbour      06:10  06:40  07:10  07:40
Fish market  06:16  06:46  07:16  07:46
Town hall    06:23  06:53  07:23  07:53
Hospital     06:31  07:01  07:31  08:01
University   06:38  07:08  07:38  08:08
Zoo          06:45  07:15  07:45  08:15"""

SHAPES = """\
def area(width, height):
    return width * height

def perimeter(width, height):
    return 2 * (width + height)

def is_square(width, height):
    return width == height

def describe(name, width, height):
    text = f"{name}: area {area(width, height)}, perimeter {perimeter(width, height)}"
    if is_square(width, height):
        text += ", a square"
    return text"""

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
    f"Copy this notice with the model KT-50 in place of KT-30 and June in place of May:\n\n{NOTICE}",
    f"Print this conversation again, but call the man Mr Baker and let him bring three hives:\n\n{TALK}",
    f"Show this recipe again for eight people, with all amounts doubled:\n\n{RECIPE}",
    f"Print this timetable again with a stop called Old Bridge, four minutes after the hospital:\n\n{BUSES}",
    f"Add type hints and a docstring of one line to each of these functions and print all of them:\n\n{SHAPES}",
    f"Quote the entries of 13, 16 and 17 June word for word, each in a paragraph of its own:\n\n{DIARY}",
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
    "Why can we often see the moon during the day?",
    "How did coffee become a drink that is known everywhere?",
    "Why does metal feel colder than wood in the same room?",
    "What happens to a letter between the postbox and the front door?",
    "How do bees find their way back to the hive?",
    "What is a leap year, and what would go wrong without it?",
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
    "One tap fills a bath in 12 minutes and another in 6 minutes. How long do both take together? Explain.",
    "Find the equation of the line through the points (2, 3) and (6, 11), step by step.",
    "How many squares of any size are there on a chessboard? Show how you count them.",
    "A ball falls from 16 metres and always bounces back half as high. How far has it moved at its fourth landing?",
    "Jo saves 35 euros a month. Kim saves 20, but begins with 180 euros. When do they have equally much?",
    "Write 0.375 and 2.4 as fractions in lowest terms, multiply them, and explain what you do.",
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
    "Write a Java class that makes a queue of two stacks, and explain why it works.",
    "Write a Go program that answers every HTTP request with the current time as JSON.",
    "Write a Bash script that warns when a disk is more than ninety percent full.",
    "Write a TypeScript interface for an order with several items, and a function that adds up its total.",
    "Write a Python program that takes a file name from the command line and shows its longest ten lines.",
    "Write a Python function that rotates a square matrix by ninety degrees, and show it on a small one.",
]

PER_KIND = 10
"""Prompts of each kind that are decoded, the first ones, unless more are asked for."""

PROMPTS: dict[str, list[str]] = {
    "chat": CHAT,
    "summarise": SUMMARISE,
    "edit": EDIT,
    "question": QUESTION,
    "maths": MATHS,
    "code": CODE,
}
"""Kind -> sixteen prompts."""
