"""The vocabulary of the corpus: plain words, their inflections, invented names, identifiers and figures."""

from __future__ import annotations

from random import Random

__all__ = [
    "ADJECTIVES",
    "ADVERBS",
    "LINKS",
    "MODALS",
    "NOUNS",
    "PREPOSITIONS",
    "VERBS",
    "identifier",
    "invented_name",
    "past",
    "plural",
    "present",
    "progressive",
    "vocabulary",
]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NOUNS = _words(
    """
    account address adjustment agency agreement airport alarm algorithm amendment amount analyst anchor annex answer
    apartment appeal appendix applicant archive argument arrangement article assembly assignment assistant attachment
    auditor authority autumn average axis backlog balance bakery bandwidth bank barrier basin batch battery beacon
    bearing benchmark bicycle bidder boiler border bottle boundary branch breach bridge broker bucket budget buffer
    builder bulletin bundle buyer cabin cable calendar camera campaign canal candidate canvas capacity captain carbon
    cargo carrier category ceiling census ceramic certificate chamber channel chapter charge charter checklist chimney
    circuit citation claim clause clerk client climate closure cluster coast coating collar collector column comment
    commission committee companion comparison compass complaint component compound concept concern condition conduit
    conference connector consent container contract contractor converter cooler corner correction corridor cottage
    council counter coupon courier course courtyard coverage cradle craft credit crew criterion crossing culture
    currency cursor curtain customer cycle cylinder dealer debate decade decision deck decoder default defect delay
    delegate delivery demand density department dependency deposit depot derivative designer desk detail detector
    device diagram dialogue digest dimension directive director discount display dispute district division dock
    document dollar domain donor door downtime draft drawer driver drought duration duty dwelling editor effect effort
    election element elevator embargo employee enclosure encoder endpoint engine enquiry entrance entry envelope
    episode equation error escalation estate estimate evaluation event evidence exception exchange exhibit expense
    experiment expert exporter extension extract fabric factor factory failure fairway farmer feature federation
    feedback fence ferry fever fibre field figure filter finding fixture flag flask fleet flight flood floor folder
    footing forecast forest formula foundry fountain fraction fragment frame freezer frequency friction frontier fuel
    function funnel furnace gallery garden gasket gateway gauge generator glacier glass glossary governor gradient
    grain grant graph gravel greenhouse grid guarantee guardian guideline habitat hammer handler handover harbour
    hardware harvest hatch hazard header heater hedge helmet heritage highway hinge holiday horizon hospital hostel
    hour household hub hurdle hydrant iceberg identity image impact importer impulse incentive incident index
    indicator infection inlet input inquiry insight inspector instance institute instruction insulator insurer
    integer intake interval interview inventory invoice island issue item jacket journal journey judge junction jury
    kernel kettle keyboard kiosk kitchen label laboratory ladder lagoon landlord landscape language lantern laptop
    latency lawyer layer layout leaflet league ledger legend lender lens lesson letter lever library licence lighthouse
    limit liquid listing litre loader loan lobby locker logbook lorry lounge lumber machine magazine magnet mailbox
    manager manifest manual margin marker market marsh material matrix maximum meadow measure mechanic medium meeting
    member memo merchant merger message metal meter method metre migration mill mineral minimum minister mirror mixture
    module moisture moment monitor month monument mortgage motion motor mountain museum narrative network neighbour
    node notebook notice novel nozzle number nursery object observer obstacle occasion offer office officer operator
    option orchard order organ orientation origin outage outcome outlet outline output oven overlap owner oxide package
    paddle painter pallet panel paper paragraph parameter parcel parish parking parser partner passage passenger
    patch patent path patient pattern pause pavement payload payment pebble penalty pension percentage perimeter period
    permit petition phase phrase picture pier pigment pilot pipeline pivot plaster plateau platform player plot pointer
    policy pollutant pond portal portion position poster pottery precinct predicate premise premium presence pressure
    priest principle printer priority prison probe problem procedure process processor producer product profile
    programme project promise proof proposal prospect protein protocol province provision proxy publisher pulse pump
    pupil purchase purpose puzzle quarry quarter query question queue quota quotation radar radiator radius railway
    rainfall ramp ranger ratio reactor reader reason rebate receipt receiver recipe record recovery reef referee
    reference refinery reform refund refuge regime region register regulator release remainder remedy reminder
    renewal rental repair replica report request reserve reservoir resident residue resource respondent response
    retailer retention return revenue review revision reward ribbon ridge river road robot rocket roof rotation
    roundabout route router routine rubber rudder rule runway saddle safeguard salary salmon sample sanction satellite
    saving scaffold scale scenario schedule schema scheme scholar school scope score screen script sculpture season
    secretary section sector segment selector seller seminar sender sensor sentence sequence server service session
    setting settlement shadow shareholder shelf shelter shield shift shipment shoreline shortage shuttle sibling signal
    signature silo skipper slope snapshot socket software soil solution solvent source spacing spare specimen spectrum
    spindle sponsor spring stadium staircase standard statement station statute steel stencil steward stock storage
    stream street strip structure student studio subset subsidy substance suburb suffix summary summit supplier support
    surface surgeon surplus survey suspension switch symbol symptom syntax system tablet tariff tank target teacher
    technician telescope template tenant tender terminal terrace territory texture theatre theorem theory thermostat
    threshold ticket timber timeout timetable token tolerance tool topic tower township tractor trader trailer trainee
    transcript transfer transition tray treasury treaty trench trial tribunal trigger trustee tunnel turbine tutor
    typeface umbrella union unit update upgrade upland usage utility vaccine valley value valve variable variance
    vault vehicle vendor venture verdict version vessel viaduct village vineyard vintage visitor volcano volume voltage
    voucher voyage waiver wallet warden warehouse warranty watchdog waterfall weather weight wetland wharf wheel width
    window winter wiring witness workbench worker workflow workshop wrapper writer yard year yield zone
    """
)

VERBS = _words(
    """
    absorb accept accompany acknowledge acquire activate adapt address adjust adopt advance affect aggregate align
    allocate allow alter amend analyse announce answer anticipate append apply appoint approach approve arrange assemble
    assess assign assist assume attach attract audit authorise avoid await balance bypass cache calculate calibrate
    cancel capture cause challenge change check circulate clarify classify clean clear close collect combine compare
    compile complete compress compute conceal conclude condense configure confirm connect consider consolidate consult
    consume contain contest continue convert convey coordinate correct cover create credit damage deactivate debate
    decide declare decline decode decorate decrease defend define delay delegate delete deliver demand describe deserve
    design destroy detach detect determine develop direct discard discharge disclose discover discuss dismiss dispatch
    display dispute dissolve distribute divide document download duplicate earn echo edit elect elevate eliminate employ
    enable enclose encode encounter endorse enforce engage enhance enlarge enrich ensure enter entitle escalate
    establish estimate evaluate examine exceed exchange exclude execute exempt exhaust expand expect explain explore
    export expose extend extract fabricate fasten favour filter finance finish flatten flush follow forecast format
    formulate forward foster frame fulfil gather generate govern grade greet group guard guide handle harvest hasten
    host identify ignore illustrate imagine import improve include incorporate increase index indicate inform inherit
    inject insert inspect install instruct insulate integrate interpret interrupt introduce invalidate invent
    investigate invite invoke isolate issue join judge justify label launch lengthen limit link list load locate
    lock maintain manage manufacture mark match measure merge migrate mirror model modify monitor mount multiply
    narrow negotiate notice notify nominate observe obtain occupy offer open operate oppose order organise outline
    outweigh overlook oversee own pack parse pause perform persuade place point polish populate position postpone
    power predict prefer prepare present preserve press prevent print process produce prohibit project promise promote
    propose protect prove provide publish pump punish purchase pursue qualify query question queue raise rank reach
    recall receive recommend reconcile record recover recycle redirect reduce refer refine reflect refresh refuse
    regard register regulate reinforce reject relate release relocate remain remember remove rename render renew rent
    repair repeat replace replicate report represent request require rescue reserve reset reshape resolve respect
    restore restrict resume retain retire retrieve return reveal reverse review revise revoke reward rotate sample
    satisfy scale scan schedule screen search secure select separate serve settle shape share shelter shift shorten
    sign simplify simulate sketch smooth solve sort specify stabilise stage start store straighten strengthen
    stretch submit succeed suggest summarise supervise supply support suppress surround survey suspect suspend sustain
    switch tailor target taste tighten tolerate touch trace track trade train transform translate transport treat
    trigger trust uncover undermine update upgrade validate verify visit warn warrant waste watch weaken weigh
    welcome widen withdraw witness wrap yield
    """
)

_IRREGULAR = {
    "oversee": ("oversaw", "overseeing"),
    "reset": ("reset", "resetting"),
    "withdraw": ("withdrew", "withdrawing"),
    "submit": ("submitted", "submitting"),
    "scan": ("scanned", "scanning"),
    "wrap": ("wrapped", "wrapping"),
    "refer": ("referred", "referring"),
    "prefer": ("preferred", "preferring"),
    "cancel": ("cancelled", "cancelling"),
    "label": ("labelled", "labelling"),
    "fulfil": ("fulfilled", "fulfilling"),
    "model": ("modelled", "modelling"),
    "format": ("formatted", "formatting"),
}

ADJECTIVES = _words(
    """
    abrupt absent abstract abundant accurate active additional adequate adjacent advanced alert alternative ambiguous
    ample ancient annual anonymous apparent appropriate arbitrary arid artificial atomic attractive automatic available
    average awkward bitter blank bold brief bright brittle broad broken calm capable careful careless casual cautious
    central certain charming cheap chemical chronic circular civil classic clean clear coarse coastal coherent cold
    collective colonial common compact comparable compatible competent complete complex concise concrete conditional
    confident consistent constant contrary controversial convenient conventional corporate correct costly critical crude
    crucial cultural curious current customary damp daily dangerous dark dead decent decisive deep defensive deliberate
    delicate dense dependent desirable detailed different difficult digital diligent dim direct distant distinct diverse
    domestic dominant doubtful dry dual durable dusty dynamic eager early eastern economic efficient elaborate elastic
    elderly electric elegant eligible empty endless enormous entire equal essential eternal ethical evident exact
    excessive exclusive exotic expensive experimental explicit external extreme faint fair faithful false familiar
    famous fast fatal favourable federal fertile final financial firm flat flexible fluent fluid foreign formal former
    fragile free frequent fresh frozen full functional fundamental future general generous gentle genuine global golden
    gradual grand grateful great green gross handy harmful harsh hasty healthy heavy helpful hesitant hidden high hollow
    honest horizontal hostile huge humble humid ideal identical idle illegal immediate immense imminent immune
    impatient implicit important improper inactive incomplete independent indirect individual industrial inferior
    informal inherent initial inner innocent intact intense interim intermediate internal invalid invisible irregular
    isolated joint junior keen large late latent lateral lazy legal lengthy liberal light likely linear liquid literal
    little local lonely long loose loud loyal lucky magnetic major mandatory manual marginal marine massive mature
    maximal mechanical medical medieval mild military minimal minor missing mobile moderate modern modest moist monthly
    moral multiple municipal muted mutual narrow national native natural neat negative nervous neutral noble noisy
    nominal normal northern notable novel nuclear numerous obscure obsolete obvious occasional odd official opaque open
    optimal optional oral orderly ordinary organic original orthodox outdated outer outstanding oval overdue overnight
    painful pale parallel partial passive patient peculiar periodic permanent persistent personal physical plain
    plausible pleasant plentiful polite poor popular portable positive possible practical precious precise preliminary
    premature present previous primary primitive prior private probable productive profitable prominent prompt proper
    proud provisional prudent public pure quick quiet radical random rapid rare rational raw ready recent redundant
    regional regular reliable reluctant remote repeated residual resilient respective responsible rich rigid robust
    rotten rough round royal rural sacred safe salty satisfactory scarce scattered secondary secret secure senior
    sensible sensitive separate serial serious severe shallow sharp short shy significant silent similar simple
    simultaneous single skilled slack slender slight slow small smooth social soft sole solid sophisticated sound sour
    southern spacious sparse spatial special specific spontaneous stable stale standard static statutory steady steep
    sterile stiff straight strange strategic strict strong stubborn subtle sudden sufficient suitable superficial
    superior supreme surplus suspicious swift symbolic synthetic systematic tall technical temporary tender tentative
    thermal thick thin thorough tidy tight tiny tired tolerant total tough toxic traditional transient transparent
    tropical true typical ultimate unable uncertain underlying uneven unfair uniform unique universal unknown unlikely
    unsafe unusual upper urban urgent useful useless usual vacant vague valid valuable variable varied vast verbal
    vertical viable vigorous virtual visible visual vital vivid voluntary vulnerable warm wasteful weak wealthy weekly
    western wet whole wide wild willing windy wise wooden worthy yearly young
    """
)

ADVERBS = _words(
    """
    abruptly accordingly accurately actively afterwards again almost already always anyway apparently automatically
    barely briefly broadly carefully clearly closely commonly completely consistently constantly correctly currently
    deliberately directly early easily effectively entirely equally essentially eventually evidently exactly explicitly
    fairly finally formally fortunately frequently fully generally gently gradually hardly hastily heavily however
    immediately implicitly inevitably initially instantly instead internally jointly largely lately later lightly
    locally loosely mainly manually meanwhile merely mostly mutually narrowly naturally nearly neatly never nevertheless
    normally notably obviously occasionally officially often once only openly originally otherwise partially partly
    perhaps periodically permanently personally plainly possibly practically precisely presumably previously primarily
    privately probably promptly properly publicly purely quickly quietly quite rapidly rarely readily really recently
    regularly reliably reluctantly repeatedly roughly safely scarcely seldom separately seriously sharply silently
    similarly simply simultaneously slightly slowly smoothly sometimes soon specifically steadily still strictly
    strongly subsequently suddenly sufficiently surely systematically temporarily therefore thoroughly tightly together
    too twice typically ultimately unexpectedly uniformly unusually urgently usually utterly visibly widely
    """
)

PREPOSITIONS = (
    "of", "in", "for", "with", "from", "on", "by", "to", "at", "after", "over", "before", "between", "through", "under",
    "during", "without", "within", "against", "about", "across", "along", "among", "around", "behind", "below", "beside",
    "beyond", "inside", "near", "outside", "since", "throughout", "toward", "until", "upon",
)  # fmt: skip
"""The common ones first; so too below."""

LINKS = (
    "when", "because", "if", "while", "so that", "after", "although", "before", "until", "as soon as", "once", "unless",
    "since", "whenever", "even if", "even though", "given that", "in case", "now that", "provided that", "though",
    "whereas", "wherever", "as long as",
)  # fmt: skip

MODALS = ("can", "must", "will", "should", "may", "could", "would", "might", "cannot", "has to", "ought to", "need not")

_STARTS = _words(
    "b bl br c ch cl cr d dr f fl fr g gl gr h j k kl kn l m n p pl pr qu r s sh sk sl sp st t th tr v w z"
)
_VOWELS = _words("a e i o u a e i o ai au ea ei ia io oa ou")
_ENDS = _words("b d ck ft g l ld lm ln m mp n nd ng nt p r rd rk rl rn rt s sk ss st t th v x z")
_TAILS = _words(
    "a berg by dale en er eth field ford ham holm ia ic in is land ley mark mere mond o or ow sen stead ton um ville wick"
)


def invented_name(random: Random) -> str:
    """A proper noun that nobody has heard before."""
    middle = random.choice(_VOWELS) + random.choice(_ENDS) if random.random() < 0.4 else ""
    name = random.choice(_STARTS) + random.choice(_VOWELS) + random.choice(_ENDS) + middle + random.choice(_TAILS)
    return name.capitalize()


def identifier(random: Random) -> str:
    """A name as programs have them: snake, camel, dotted or a call."""
    verb, noun, other = random.choice(VERBS), random.choice(NOUNS), random.choice(NOUNS)
    shape = random.randrange(7)
    if shape == 0:
        return f"{verb}_{noun}"
    if shape == 1:
        return f"{noun}_{other}_{random.choice(('id', 'at', 'count', 'key', 'size', 'ms', 'url', 'max'))}"
    if shape == 2:
        return f"{noun}{other.capitalize()}"
    if shape == 3:
        return f"{noun}.{other}.{verb}"
    if shape == 4:
        return f"{verb}_{other}({noun}={random.randrange(2, 9000)})"
    if shape == 5:
        return f"{noun.upper()}_{other.upper()}"
    return f"{noun}/{other}-{random.randrange(16**4):04x}.{random.choice(('csv', 'json', 'log', 'md', 'py', 'toml'))}"


def plural(noun: str) -> str:
    if noun == "criterion":
        return "criteria"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


def present(verb: str) -> str:
    return plural(verb)


def past(verb: str) -> str:
    if verb in _IRREGULAR:
        return _IRREGULAR[verb][0]
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ied"
    return verb + ("d" if verb.endswith("e") else "ed")


def progressive(verb: str) -> str:
    if verb in _IRREGULAR:
        return _IRREGULAR[verb][1]
    return (verb[:-1] if verb.endswith("e") and not verb.endswith("ee") else verb) + "ing"


def vocabulary() -> set[str]:
    """Every word that can occur, apart from invented names, identifiers and figures."""
    words = {*NOUNS, *VERBS, *ADJECTIVES, *ADVERBS, *MODALS, *PREPOSITIONS, *LINKS}
    words |= {plural(noun) for noun in NOUNS}
    for verb in VERBS:
        words |= {present(verb), past(verb), progressive(verb)}
    return words
