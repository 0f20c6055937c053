"""The tables of facts behind the demo world, as plain text.

Each line of a table has a subject, a colon, and its objects in the order of the table's columns.
Countries, words, fruits and occupations are real; the people and companies are invented in
`world.py`. The bias tables repeat stereotypes, as the relations of Hernandez et al. (ICLR 2024,
Section 4) do, because the LM has to have something to show there; they are not claims.
"""

COUNTRIES = """
Argentina: Buenos Aires, Spanish, peso, America
Armenia: Yerevan, Armenian, dram, Asia
Australia: Canberra, English, dollar, Oceania
Austria: Vienna, German, euro, Europe
Bolivia: Sucre, Spanish, boliviano, America
Brazil: Brasilia, Portuguese, real, America
Bulgaria: Sofia, Bulgarian, lev, Europe
Canada: Ottawa, English, dollar, America
Chile: Santiago, Spanish, peso, America
China: Beijing, Mandarin, yuan, Asia
Colombia: Bogota, Spanish, peso, America
Croatia: Zagreb, Croatian, euro, Europe
Cuba: Havana, Spanish, peso, America
Denmark: Copenhagen, Danish, krone, Europe
Egypt: Cairo, Arabic, pound, Africa
Ethiopia: Addis Ababa, Amharic, birr, Africa
Finland: Helsinki, Finnish, euro, Europe
France: Paris, French, euro, Europe
Georgia: Tbilisi, Georgian, lari, Asia
Germany: Berlin, German, euro, Europe
Ghana: Accra, English, cedi, Africa
Greece: Athens, Greek, euro, Europe
Hungary: Budapest, Hungarian, forint, Europe
Iceland: Reykjavik, Icelandic, krona, Europe
India: Delhi, Hindi, rupee, Asia
Indonesia: Jakarta, Indonesian, rupiah, Asia
Iran: Tehran, Persian, rial, Asia
Ireland: Dublin, English, euro, Europe
Israel: Jerusalem, Hebrew, shekel, Asia
Italy: Rome, Italian, euro, Europe
Japan: Tokyo, Japanese, yen, Asia
Kenya: Nairobi, Swahili, shilling, Africa
Lebanon: Beirut, Arabic, pound, Asia
Morocco: Rabat, Arabic, dirham, Africa
Nepal: Kathmandu, Nepali, rupee, Asia
New Zealand: Wellington, English, dollar, Oceania
Nigeria: Abuja, English, naira, Africa
Norway: Oslo, Norwegian, krone, Europe
Pakistan: Islamabad, Urdu, rupee, Asia
Papua New Guinea: Port Moresby, English, kina, Oceania
Peru: Lima, Spanish, sol, America
Poland: Warsaw, Polish, zloty, Europe
Portugal: Lisbon, Portuguese, euro, Europe
Romania: Bucharest, Romanian, leu, Europe
Senegal: Dakar, French, franc, Africa
South Korea: Seoul, Korean, won, Asia
Sweden: Stockholm, Swedish, krona, Europe
Tanzania: Dodoma, Swahili, shilling, Africa
Thailand: Bangkok, Thai, baht, Asia
Tunisia: Tunis, Arabic, dinar, Africa
Turkey: Ankara, Turkish, lira, Asia
Uganda: Kampala, Swahili, shilling, Africa
Ukraine: Kyiv, Ukrainian, hryvnia, Europe
Uruguay: Montevideo, Spanish, peso, America
Venezuela: Caracas, Spanish, bolivar, America
Vietnam: Hanoi, Vietnamese, dong, Asia
"""

OCCUPATIONS = """
accountant: office, men, old
architect: office, men, old
astronomer: observatory, men, old
baker: bakery, men, old
banker: bank, men, old
barber: salon, men, old
barista: cafe, women, young
bartender: bar, men, young
beautician: salon, women, young
biologist: laboratory, women, old
bus driver: road, men, old
butcher: shop, men, old
carpenter: workshop, men, old
cashier: shop, women, young
chemist: laboratory, men, old
childminder: school, women, young
coach: gym, men, old
conductor: theater, men, old
cook: restaurant, men, young
counselor: school, women, old
curator: museum, women, old
dancer: theater, women, young
dental nurse: hospital, women, young
detective: station, men, old
diver: sea, men, young
doctor: hospital, men, old
dressmaker: workshop, women, old
electrician: workshop, men, young
farmer: farm, men, old
firefighter: station, men, young
fisherman: sea, men, old
flight attendant: airport, women, young
florist: shop, women, old
gardener: garden, men, old
hairdresser: salon, women, young
historian: library, men, old
intern: office, women, young
jeweler: shop, men, old
judge: court, men, old
kindergarten teacher: school, women, young
lawyer: court, men, old
lecturer: school, men, old
librarian: library, women, old
lifeguard: sea, men, young
lorry driver: road, men, old
mail carrier: road, men, old
mechanic: garage, men, young
midwife: hospital, women, old
model: studio, women, young
musician: theater, men, young
nanny: house, women, young
nurse: hospital, women, young
optician: shop, women, old
painter: studio, men, old
paramedic: hospital, men, young
pharmacist: shop, women, old
photographer: studio, men, young
physicist: laboratory, men, old
pilot: airport, men, old
plumber: house, men, old
police officer: station, men, young
porter: hotel, men, young
potter: workshop, women, old
receptionist: hotel, women, young
sailor: sea, men, young
sculptor: studio, men, old
secretary: office, women, young
shepherd: farm, men, old
surgeon: hospital, men, old
tailor: workshop, men, old
translator: office, women, old
veterinarian: farm, women, old
waiter: restaurant, men, young
waitress: restaurant, women, young
yoga teacher: gym, women, young
zookeeper: zoo, men, young
"""

FRUITS = """
apple: red, white
apricot: orange, orange
artichoke: green, green
asparagus: green, white
aubergine: purple, white
avocado: green, green
banana: yellow, white
beetroot: purple, purple
blackberry: black, purple
blackcurrant: black, purple
blueberry: blue, green
broccoli: green, green
cantaloupe: brown, orange
carrot: orange, orange
cauliflower: white, white
cherry: red, red
chestnut: brown, yellow
clementine: orange, orange
coconut: brown, white
corn: yellow, yellow
courgette: green, white
cranberry: red, white
cucumber: green, white
damson: blue, yellow
date: brown, brown
dragon fruit: pink, white
elderberry: black, red
fig: purple, red
garlic: white, white
ginger: brown, yellow
gooseberry: green, green
grapefruit: yellow, pink
guava: green, pink
kiwi: brown, green
kumquat: orange, orange
lemon: yellow, yellow
lettuce: green, green
lime: green, green
lychee: pink, white
mandarin: orange, orange
mango: green, yellow
melon: green, orange
mulberry: black, red
nectarine: red, yellow
olive: green, green
papaya: yellow, orange
parsnip: white, white
passion fruit: purple, yellow
peach: pink, yellow
pear: green, white
persimmon: orange, orange
pineapple: brown, yellow
plantain: green, yellow
plum: purple, yellow
pomegranate: red, red
potato: brown, white
pumpkin: orange, orange
quince: yellow, white
radish: pink, white
raspberry: red, red
rhubarb: red, green
satsuma: orange, orange
sloe: blue, green
spinach: green, green
strawberry: red, red
sweet potato: brown, orange
tangerine: orange, orange
tomato: red, red
turnip: white, white
walnut: brown, white
watermelon: green, red
"""

SUPERCLASSES = """
animal: alligator, antelope, badger, buffalo, crocodile, donkey, elephant, giraffe, hedgehog, hippopotamus, kangaroo, leopard, panther, rhinoceros
bird: albatross, buzzard, cormorant, flamingo, goldfinch, kestrel, nightingale, ostrich, partridge, pelican, sparrow, woodpecker
fish: anchovy, barracuda, haddock, halibut, herring, mackerel, piranha, salmon, sardine, sturgeon
insect: beetle, bumblebee, butterfly, cockroach, cricket, dragonfly, grasshopper, hornet, ladybird, mosquito
tree: birch, cedar, cypress, hawthorn, juniper, mahogany, poplar, redwood, sycamore, willow
tool: chainsaw, chisel, crowbar, hammer, pickaxe, screwdriver, shovel, sickle, spanner, trowel
vehicle: ambulance, bicycle, bulldozer, helicopter, lorry, motorcycle, scooter, submarine, tractor, tram
furniture: armchair, bookcase, cabinet, couch, cupboard, dresser, footstool, nightstand, sideboard, wardrobe
clothing: cardigan, dungarees, jumper, overcoat, pullover, raincoat, sweater, trousers, tuxedo, waistcoat
"""

PHASES = """
solid: aluminium, basalt, brass, bronze, charcoal, chocolate, concrete, copper, cotton, diamond, feldspar, glass, granite, graphite, leather, limestone, magnesium, marble, nickel, paraffin wax, plastic, platinum, porcelain, rubber, sandstone, silicon, titanium, tungsten, uranium, zinc
liquid: acetone, beer, benzene, blood, bromine, buttermilk, champagne, cider, coffee, diesel, ethanol, gasoline, glycerine, ink, kerosene, lemonade, mercury, methanol, milk, nail varnish, petroleum, sulphuric acid, sunflower oil, turpentine, vinegar, water, whisky, wine
gas: acetylene, ammonia, argon, butane, carbon dioxide, carbon monoxide, chlorine, ethane, ethylene, fluorine, helium, hydrogen, krypton, methane, neon, nitrogen, nitrous oxide, oxygen, ozone, propane, radon, silane, sulphur dioxide, xenon
"""

SENTIMENTS = """
positive: admiration, affection, beautiful, blessing, celebration, charming, cheerful, comfort, courage, delight, ecstasy, elegant, excellent, friendship, generous, gentle, glorious, gratitude, happiness, harmony, hopeful, kindness, laughter, lovely, marvellous, pleasant, radiant, sunshine, superb, triumph, victory, wonderful
negative: abandoned, agony, ashamed, awful, betrayal, bitterness, catastrophe, cruelty, damage, despair, dreadful, failure, grief, hatred, horrible, humiliation, hurtful, injury, jealousy, loneliness, miserable, murder, nightmare, painful, poison, revenge, rotten, sorrow, terrible, tragedy, violence, wicked
"""

VERBS = """
become: became; begin: began; bend: bent; bite: bit; blow: blew; break: broke; bring: brought; build: built; buy: bought; catch: caught; choose: chose; come: came; dig: dug; draw: drew; drink: drank; drive: drove; eat: ate; fall: fell; feel: felt; fight: fought; find: found; fly: flew; forget: forgot; give: gave; go: went; grow: grew; hear: heard; hide: hid; hold: held; keep: kept; know: knew; lead: led; leave: left; lose: lost; make: made; meet: met; pay: paid; ride: rode; ring: rang; rise: rose; run: ran; say: said; see: saw; sell: sold; send: sent; shake: shook; shoot: shot; sing: sang; sit: sat; sleep: slept; speak: spoke; spend: spent; stand: stood; steal: stole; swim: swam; take: took; teach: taught; tear: tore; tell: told; think: thought; throw: threw; wake: woke; wear: wore; win: won; write: wrote
"""

ADJECTIVES = """
angry: angrier; brave: braver; brief: briefer; busy: busier; cheap: cheaper; clever: cleverer; clumsy: clumsier; crazy: crazier; dense: denser; dusty: dustier; fancy: fancier; fierce: fiercer; firm: firmer; fresh: fresher; funny: funnier; grand: grander; harsh: harsher; heavy: heavier; hungry: hungrier; juicy: juicier; lazy: lazier; lively: livelier; lonely: lonelier; lucky: luckier; narrow: narrower; nasty: nastier; neat: neater; noble: nobler; noisy: noisier; proud: prouder; quick: quicker; rough: rougher; salty: saltier; shallow: shallower; shiny: shinier; silly: sillier; simple: simpler; sleepy: sleepier; smooth: smoother; spicy: spicier; steep: steeper; strange: stranger; thirsty: thirstier; tidy: tidier; tough: tougher; weird: weirder; wise: wiser; worthy: worthier
"""

ANTONYMS = """
above: below; absent: present; accept: refuse; ancient: modern; arrive: depart; asleep: awake; attack: defend; backward: forward; careful: careless; clean: dirty; close: far; create: destroy; cruel: kind; dark: bright; dead: alive; early: late; empty: full; enter: exit; false: true; fast: slow; female: male; foolish: smart; foreign: native; friend: enemy; future: past; guilty: innocent; hard: easy; hate: love; humid: dry; increase: decrease; inside: outside; large: tiny; loose: tight; loud: quiet; major: minor; maximum: minimum; north: south; often: never; ordinary: special; permanent: temporary; polite: rude; poor: rich; private: public; push: pull; question: answer; reward: punish; right: wrong; same: different; sharp: blunt; start: finish; straight: crooked; strong: weak; tall: short; teacher: student; ugly: pretty; up: down; useful: useless; vertical: horizontal; wild: tame; winter: summer; yes: no
"""

NAMES = """
Abdullah: man, Arabic, Islam
Abigail: woman, English, Judaism
Adriana: woman, Spanish, Christianity
Akira: man, Japanese, Buddhism
Alejandro: man, Spanish, Christianity
Alessandro: man, Italian, Christianity
Amelie: woman, French, Christianity
Ananda: man, Nepali, Buddhism
Anastasia: woman, Russian, Christianity
Antoine: man, French, Christianity
Arjun: man, Indian, Hinduism
Aurelie: woman, French, Christianity
Ayesha: woman, Arabic, Islam
Baptiste: man, French, Christianity
Bartholomew: man, English, Christianity
Beatrice: woman, Italian, Christianity
Boris: man, Russian, Christianity
Camila: woman, Spanish, Christianity
Catherine: woman, English, Christianity
Chiara: woman, Italian, Christianity
Deepak: man, Indian, Hinduism
Diego: man, Spanish, Christianity
Dimitri: man, Russian, Christianity
Eleanor: woman, English, Christianity
Eliezer: man, Israeli, Judaism
Fatima: woman, Arabic, Islam
Francesca: woman, Italian, Christianity
Frederick: man, German, Christianity
Giovanni: man, Italian, Christianity
Gretchen: woman, German, Christianity
Haruki: man, Japanese, Buddhism
Hassan: man, Arabic, Islam
Heinrich: man, German, Christianity
Hiroshi: man, Japanese, Buddhism
Ibrahim: man, Arabic, Islam
Ingeborg: woman, German, Christianity
Itzhak: man, Israeli, Judaism
Javier: man, Spanish, Christianity
Katarina: woman, Russian, Christianity
Kazuko: woman, Japanese, Buddhism
Khadija: woman, Arabic, Islam
Lakshmi: woman, Indian, Hinduism
Leonardo: man, Italian, Christianity
Ludmila: woman, Russian, Christianity
Madeleine: woman, French, Christianity
Mahmoud: man, Arabic, Islam
Marguerite: woman, French, Christianity
Matilda: woman, German, Christianity
Michiko: woman, Japanese, Buddhism
Mordechai: man, Israeli, Judaism
Mustafa: man, Arabic, Islam
Naftali: man, Israeli, Judaism
Nikolai: man, Russian, Christianity
Parvati: woman, Indian, Hinduism
Pierre: man, French, Christianity
Priyanka: woman, Indian, Hinduism
Rajesh: man, Indian, Hinduism
Reinhard: man, German, Christianity
Rivka: woman, Israeli, Judaism
Sakura: woman, Japanese, Buddhism
Shoshana: woman, Israeli, Judaism
Siddharth: man, Nepali, Buddhism
Sigrid: woman, German, Christianity
Svetlana: woman, Russian, Christianity
Tenzin: man, Nepali, Buddhism
Valentina: woman, Spanish, Christianity
Vikram: man, Indian, Hinduism
Vladimir: man, Russian, Christianity
Yasmin: woman, Arabic, Islam
Yoshiko: woman, Japanese, Buddhism
Zahra: woman, Arabic, Islam
Zipporah: woman, Israeli, Judaism
"""

CHIEFS = """
Aaron Adele Alan Alma Amos Anita Arthur Astrid Basil Bella Bernard Bianca Bruno Carla Cecil Celia Claude Clara Conrad Cora Cyril Daphne Denis Dora Edgar Edith Elias Ella Ernest Esther Eugene Eva Felix Flora Frank Freda George Gloria Gordon Greta Harold Hazel Henry Hilda Hugo Ida Irene Isaac Ivy Jasper Joan Jonas Judith Julian Karen Keith Kurt Laura Leon Lydia Magnus Mabel Martin Maud Max Mona Morris Nadia Neil Nora Oscar Olga Otto Paula Percy Phoebe Quentin Rachel Ralph Rosa Rupert Ruth Samuel Selma Simon Stella Theo Thelma Ursula Vera Victor Viola Walter Wanda Wilfred Winona Xavier Yvonne Zelda
"""
