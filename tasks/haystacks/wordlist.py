"""Plain words for generated sentences. People and rooms differ in their first letters."""


def word_list(text: str) -> list[str]:
    """Return the words of a text."""
    return text.split()


ADJECTIVES = word_list(
    """
able amber ample azure bare bitter blue blunt bold brave brief bright brisk broad brown calm cheap
chief civil clean clear close cold cool coral crisp cruel curly damp dark dear deep dense dim dizzy
double dry dull dusty eager early easy empty equal faint fair false fast fierce final firm flat
fresh full gentle giant glad golden good grand gray green happy hard harsh hidden high hollow honest
hot huge humble icy idle ivory jolly keen kind large late lazy lean level light little local lonely
long loose loud low loyal lucky
    """
)
NOUNS = word_list(
    """
acorn anchor anvil apron arch arrow badge banner barn barrel basin beacon bell bench blade board
boat bonnet bottle bowl branch brick bridge broom brush bucket button cabin cable camel candle
canoe castle cedar chain chalk cherry chest clock cloud clover coast coin comet copper cotton cradle
crane creek crown curtain daisy desert donkey drum eagle engine falcon feather fence fiddle field
flame flute forest forge fossil fox garlic gate glove goose grape guitar hammer harbor hazel heron
hill honey hook horn island jacket jewel kettle kite ladder lantern
    """
)
SYNONYMS = {
    half: dict(pair.split("/") for pair in pairs.split())
    for half, pairs in {
        "adjectives": """
angry/furious big/huge brave/bold bright/shiny calm/quiet clever/smart cold/chilly fast/quick
glad/merry hard/firm odd/strange old/ancient poor/needy rich/wealthy shy/timid silly/foolish
slim/thin tired/weary weak/feeble wet/soaked
        """,
        "nouns": """
boat/vessel child/kid coat/jacket creek/stream doctor/medic farmer/grower forest/woods
garbage/trash gift/present home/house infant/baby lawyer/attorney meal/dinner picture/image
rabbit/bunny sofa/couch rock/stone shop/store tale/story thief/robber
        """,
    }.items()
}
"""Pairs of words of about the same meaning; no word is in two of them."""
PEOPLE = ["Anna", "Boris", "Clara", "David", "Emma", "Frank"]
ROOMS = ["attic", "bedroom", "cellar", "dairy", "entry", "forge"]
THINGS = ["apple", "basket", "candle", "dish", "envelope", "fiddle", "glove", "hammer"]
FIRST_NAMES = word_list(
    """
Ada Albert Alice Amy Andrew Arthur Beth Brian Carl Carol Cecil Chloe Colin Cora Daisy Daniel Diana
Donald Dora Dylan Edgar Edith Edwin Eliza Ellen Elmer Enid Ernest Esther Eva Felix Flora Fred Gail
George Gloria Grace Harold Harry Hazel Helen Henry Hilda Hugh Ida Iris Isaac Ivan Jack Jane Jasper
Jean Joan John Josie Joyce Julia Karen Keith Kevin Laura Leah Leo Lewis
    """
)
LAST_NAMES = word_list(
    """
Abbott Adams Archer Baker Barnes Bell Berry Bishop Black Booth Brooks Brown Butler Carter Chapman
Clark Cole Collins Cook Cooper Cox Cross Dawson Day Dean Dixon Drake Elliot Ellis Evans Fisher Ford
Foster Fox Gibson Gray Green Hall Harris Hayes Hill Holmes Hughes Hunt Jenkins Jones Kelly King
Knight Lane Lee Lloyd Marsh Mason Mills Moore Morgan Morris Nash Norris Palmer Parker Payne Pearce
    """
)
NOISE = (
    "Rain fell on the hills. A cart passed on the road. Leaves turned in the wind. The water was "
    "still. Birds sat on the wall. Smoke rose in the evening. The path went on. "
)
"""A paragraph that fills rows; none of its words is part of a question."""
