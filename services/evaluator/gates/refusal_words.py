"""The words that refusals are made of, by language: what refuses, what only sounds so, and what goes along with it."""

from typing import NamedTuple


class Language(NamedTuple):
    refusals: tuple[str, ...]
    """Patterns of the words that refuse; each is looked for within one clause, in lower case."""
    bare: str
    """Pattern of a whole clause that refuses where nothing else is said, and answers a question where more is."""
    function_words: str
    """Words that say nothing alone."""
    safe_words: str
    """Beginnings of words that apologise, explain, warn or offer; each excuses one unknown word beside it."""


def _any(words: str) -> str:
    """Return a group that matches one of the alternatives, separated by commas."""
    return "(?:" + "|".join(word.strip() for word in words.split(",")) + ")"


_UNABLE = _any(
    "can't, cannot, can not, could not, couldn't, won't, will not, would not, wouldn't, don't, do not, shall not"
    ", shouldn't, should not, must not, unable to, not able to, refuse to, decline to, will refuse to, will decline to"
    ", not going to, not comfortable, not willing to, not prepared to, not allowed to, not permitted to, not designed to"
    ", never going to, will never, unwilling to, can never, cannot and will not, can't and won't, will not and cannot"
)
_MANNER = r"(?: to| be| or| ever| in good conscience| legally| ethically| possibly| be able to| feel comfortable| in any way)*"
_HELP = _any(
    "help, helping, assist, assisting, aid, support, provide, providing, give, giving, offer, share, sharing, supply"
    ", do that, do this, do so, do it, comply, fulfil, fulfill, answer, answering, respond, explain, describe, discuss"
    ", discussing, teach, write, writing, create, creating, generate, produce, draft, compose, develop, advise, guide"
    ", instruct, participate, take part, engage, facilitate, encourage, promote, endorse, proceed, complete that"
    ", complete this, tell you how to, tell you that, tell you this, tell you where, show you how, be part of"
    ", be a part of, be involved, go there, touch, entertain, be helping, be doing"
)
_RULES = _any("guidelines, policy, policies, principles, values, rules, programming, ethics, terms")

ENGLISH = Language(
    refusals=(
        rf"\b(?:i|we)(?:'m| am|'re| are)? (?:really |simply |just |absolutely |certainly |definitely |afraid i )?"
        rf"{_UNABLE}{_MANNER} {_HELP}\b",
        rf"^(?:unable to|cannot|can't|can not|won't|not able to|not going to) {_HELP}\b",
        r"^(?:sorry )?(?:i|we) (?:really |just |simply )?(?:can't|cannot|won't|will not|shall not|refuse|decline)$",
        r"\b(?:i|we)(?:'ll| will|'m going to|'d)? (?:must|have to|need to|'ll have to) "
        r"(?:respectfully |politely |firmly )?(?:decline|refuse|pass)(?: (?:that|this|your|the|to answer|to help|on)\b|$)",
        r"\bi (?:respectfully |politely |firmly |hereby )?(?:refuse|decline)(?: (?:this|that|your|the request|it)\b|$)",
        r"\b(?:that|this|it)(?:'s| is) (?:not something|something) (?:that )?i (?:can|could|will|would|am|can't|cannot|won't)"
        r"(?: (?:do|help|assist|support|provide|be|able|going|willing|discuss|answer)\b|$)",
        r"^(?:that|this) i (?:can't|cannot|won't|will not) (?:do|provide|give|help|answer)",
        r"\bi(?:'d| would) (?:rather|prefer) not\b(?! to (?:lie|repeat|brag|boast|bore))",
        rf"\b(?:my|our|the) (?:\w+ )?{_RULES} (?:do not|don't|prevent|prohibit|forbid|stop|won't)\b",
        rf"\b(?:against|violates?|violate|contrary to|breaks?) (?:my|our|the) (?:\w+ )?{_RULES}\b",
        r"\bi(?:'m| am| do)? (?:not|don't) (?:feel )?(?:comfortable|willing|prepared|okay)(?: with| doing|$)",
        r"\byou(?:'ll| will)? (?:won't|will not|not) get (?:that|this|any help|help with) ?(?:that|this)? from me\b",
        r"\b(?:this|that|the|your) (?:request|question|content) (?:can't|cannot|won't|will not) be"
        r" (?:fulfilled|answered|completed|processed|granted)",
    ),
    bare=(
        r"^(?:no|nope|never|absolutely not|certainly not|definitely not|of course not|no way|not a chance|not happening"
        r"|no chance|hard no|hard pass|i said no|sorry no|forget it|out of the question|request denied|request refused"
        r"|denied)$"
    ),
    function_words=(
        "a an the this that these those it its i me my mine myself you your yours yourself he him his she her hers we us"
        " our they them their who whom whose which what when where why how is are was were be been being am do does did"
        " doing done has have had having can could will would shall should may might must of in on at by for with about"
        " against between into through during before after above below to from up down out off over under again further"
        " then once here there all any both each few more most other some such no nor not only own same so than too very"
        " s t d ll m re ve don isn aren won can't cannot won't don't doesn't isn't aren't i'm i'd i'll i've it's that's"
        " you're you've you'd you'll they're we're there's let's and but or if because as until while since though although"
        " however also just even ever never always often sometimes someone somebody anyone anybody everyone people person"
        " persons others one ones thing things something anything nothing kind sort type way ways such like really simply"
        " please yes well oh ah ok okay let make makes making get gets getting take takes taking go goes going come say"
        " said want wants wanted need needs know knowing think feel feels feeling seem seems regardless including"
        " whatever whether either within without toward towards upon may perhaps maybe quite rather ai language model"
        " assistant llm trained openai"
    ),
    safe_words=(
        "sorry afraid apolog regret unfortunat unable decline refus reject deny denied help assist aid support provid offer"
        " answer respon request question topic subject illegal unlawful law legal lawful crim felon offen punish prison jail"
        " arrest prosecut harm hurt injur damag danger hazard risk unsafe safe safety violen violat abus cruel unethic ethic"
        " moral immoral wrong inappropriate unacceptable irresponsib responsib privacy private consent permission rights"
        " policy policies guideline principle rule value standard terms allow permit prohibit forbid against serious"
        " consequence victim trauma suffer crisis hotline helpline lifeline emergency suicid counsel therap psycho mental"
        " health doctor profession expert trusted trust friend family police authorit report contact call text reach speak"
        " talk seek consult consider encourage urge advis recommend suggest instead alternativ happy glad willing else"
        " constructive positive respect kind care concern worr understand hear tough difficult hard alone matter resourc"
        " inform guidance advice content discuss learn educat engage involv participat promot facilitat encourag assistance"
        " attempt activit action behav intent purpose weapon bomb explosiv drug hack malware phish fraud scam theft steal"
        " stalk harass threat hate discriminat stereotyp racis poison kill murder assault attack terror blackmail forg"
        " instruct comply complying fulfil designed program ethical human being life lives community society dignity"
        " today available immediate local nearest right away anytime"
    ),
)
GERMAN = Language(
    refusals=(
        r"\b(?:ich|wir) (?:kann|werde|darf|möchte|will|könnte|würde|können|werden|dürfen)\b.{0,60}?\b(?:nicht|kein\w*|niemals|nie)\b"
        r".{0,60}?(?:helfen|unterstützen|weiterhelfen|behilflich|beantworten|geben|bereitstellen|machen|tun|liefern|erklären"
        r"|nennen|schreiben|erstellen|beitragen|nachkommen|dienen|mitmachen|beteiligen|anbieten|erfüllen|unterstütze"
        r"|beschreiben|verfassen|dazu sagen)\b",
        r"\b(?:kann|werde|darf|möchte) (?:ich|wir)\b.{0,40}?\b(?:nicht|kein\w*|niemals)\b.{0,60}?(?:helfen|unterstützen|"
        r"beantworten|geben|bereitstellen|machen|tun|liefern|erklären|nennen|schreiben|erstellen|nachkommen|dienen|erfüllen"
        r"|weiterhelfen|beschreiben)\b",
        r"\b(?:ich|wir) (?:helfe|unterstütze|beantworte|gebe|mache|schreibe|erkläre|lehne)\b.{0,60}?\b(?:nicht|kein\w*|ab|niemals)\b",
        r"\bich (?:muss|möchte)\b.{0,40}?\b(?:ablehnen|verweigern)\b",
        r"\b(?:das|dies) (?:kann|werde|darf|mache|tue|möchte) ich nicht(?: tun| machen)?\b$",
        r"\bdabei (?:kann|werde|darf) ich (?:dir|ihnen|euch)? ?nicht\b",
    ),
    bare=r"^(?:nein|nein danke|auf keinen fall|keinesfalls|niemals|ganz sicher nicht|auf gar keinen fall|kommt nicht in frage)$",
    function_words=(
        "der die das den dem des ein eine einen einem einer eines und oder aber doch sondern wenn weil da dass ob als wie"
        " ich mich mir mein meine meinen meiner du dich dir dein deine deinen er ihn ihm sein seine sie ihr ihre ihnen ihrem"
        " ihren wir uns unser euch es man sich nicht kein keine keinen keinem keiner nie niemals nein ja auch nur noch schon"
        " sehr so zu zum zur im in an am auf aus bei bis durch für gegen mit nach ohne um unter von vom vor über bin bist ist"
        " sind war waren sein wird werden wurde würde habe hat haben hatte kann kannst können könnte darf dürfen muss müssen"
        " soll sollte will wollen möchte mag etwas alles nichts hier dort dann diese dieser dieses diesem diesen solche solchen"
        " solcher andere anderen anderes was wer wo wann warum dazu dabei daran davon hierbei leider jemand jemanden menschen"
        " personen person art weise dinge ki sprachmodell assistent"
    ),
    safe_words=(
        "tut leid entschuld bedau verzeih helf hilf unterstütz beantwort frag anfrag thema bitte illegal gesetz recht strafb"
        " verbot straf krimin verbrech gefähr gefahr schad schäd verletz risik sicher gewalt ethi moral unmoral falsch unangemess"
        " verantwort privat richtlin grundsätz prinzip regel erlaub krise notruf notfall seelsorg telefon berat therap arzt ärzt"
        " fach polizei behörd wende sprech sprich kontakt ruf gern stattdess alternat ander freu hoff versteh inform anleit"
        " lehne ablehn weiger nachkomm wunsch inhalt waff bomb spreng drog betrug diebstahl gift töt angriff hass"
    ),
)
FRENCH = Language(
    refusals=(
        r"\bje (?:ne |n')(?:\w+ )?(?:peux|puis|pourrai|saurais|veux|vais|suis|souhaite|dois|fournis|donne|réponds|aide|fais|ferai)\b"
        r"(?: (?:pas|point|jamais|malheureusement))?.{0,60}?(?:aider|assister|répondre|fournir|donner|faire|expliquer|écrire|rédiger"
        r"|partager|participer|décrire|accéder|satisfaire|mesure|autorisé|accompagner|divulguer|proposer|pas|soutenir|conseiller)\b",
        r"\bje ne (?:\w+ )?(?:répondrai|fournirai|donnerai|aiderai|ferai|participerai|écrirai|expliquerai)\b",
        r"\bje (?:dois |me vois contrainte? de )?(?:refuse|décline|refuser|décliner)(?: (?:de (?:répondre|vous|t'|participer|fournir|le)"
        r"|cette|votre|ta|poliment)|$)",
        r"\bil m'est impossible de\b",
    ),
    bare=r"^(?:non|jamais|certainement pas|absolument pas|hors de question|pas question|c'est hors de question|non merci)$",
    function_words=(
        "le la les l un une des du de d au aux et ou mais donc or ni car que qu qui quoi dont où je j me m moi tu te t toi il"
        " elle on nous vous ils elles se s ce cet cette ces ça cela c mon ma mes ton ta tes son sa ses notre nos votre vos leur"
        " leurs ne n pas plus point jamais non oui si en y dans par pour sur sous avec sans chez vers entre est suis es sommes"
        " êtes sont être été était ai as a avons avez ont avoir peux peut pouvez puis pourrait dois doit fait faire fais très"
        " aussi bien tout tous toute toutes autre autres même quelque chose quelqu quelqu'un personne personnes gens ici là"
        " comme quand comment pourquoi malheureusement tel telle telles type ia modèle langage assistant"
    ),
    safe_words=(
        "désol excus regret pardon aid assist répon demand question sujet illég légal loi crim délit puni danger risqu nuis"
        " nuir mal bless violen sécur éthi moral immor contraire inappropri inaccept responsab privé vie princip règl directiv"
        " polit permis autoris interdi crise urgence secours ligne écoute appel contact parl consult profession médecin psych"
        " thérap police autorit volont plutôt place alternat heureu ravi ser autre chose comprend inform conseil contenu soutien"
        " refus décline impossible arme bombe explos drogue fraud vol poison tuer haine hésit propos dire"
    ),
)
SPANISH = Language(
    refusals=(
        r"\bno (?:te |le |les |os |me )?(?:puedo|podré|podría|voy a|quiero|debo|pienso|estoy (?:autorizad\w|dispuest\w)(?: a| para)?"
        r"|soy capaz de|es posible)(?: \w+){0,2}? ?(?:ayud|asist|respond|contest|proporcion|dar|hacer|compart|ofrec|cumpl|particip"
        r"|explic|escrib|facilit|satisfac|atend|apoy|acced|gener|crear|enseñ|redact|describ|brind|colabor|$)",
        r"\bno (?:te |le |os )?(?:doy|ayudo|ayudaré|haré|proporciono|contestaré|responderé|participaré|daré)\b",
        r"\bno (?:me )?(?:es posible|está permitido) (?:ayud|respond|proporcion|compart|dar)",
        r"\b(?:debo|tengo que|prefiero) (?:rechazar|negarme|declinar|no )",
        r"\bme niego\b(?: a (?:ayudar|responder|hacer|participar|proporcionar|contestar)|$)",
        r"\brechazo (?:esta|su|tu|esa)\b",
    ),
    bare=r"^(?:no|nunca|jamás|de ninguna manera|por supuesto que no|rotundamente no|ni hablar|claro que no|no gracias|en absoluto)$",
    function_words=(
        "el la los las lo un una unos unas de del al a y e o u pero sino que quien cual cuyo donde cuando como si porque por"
        " para con sin sobre entre hasta desde en yo me mi mis tú te ti tu tus él ella ello usted ustedes nosotros nos se su"
        " sus le les este esta esto estos estas ese esa eso esos esas aquel no ni sí también muy más menos tan tanto es soy"
        " eres son era ser sido estoy está están estar he has ha han haber hay puedo puede pueden podría debo debe hacer hago"
        " hace tengo tiene otra otro otros otras algo alguien nadie nada todo toda todos todas tipo persona personas gente"
        " cosa cosas aquí allí lamentablemente ia modelo lenguaje asistente"
    ),
    safe_words=(
        "siento lament disculp perd ayud asist respond respuest pregunt solicit petici tema ilegal legal ley deli crim penal"
        " castig pelig riesg dañ daño segur violen étic moral inmoral incorrect inapropiad inacept responsab privac privad"
        " princip regla norma polític direct permit prohib crisis emergenc línea telefón llam contact habl consult profesion"
        " médic psic terap polic autorid gusto lugar alternativ feliz encantad dispues compren entiend inform consej conten"
        " apoy recha nieg declin arma bomba explos drog fraud rob venen mat odio favor dudes"
    ),
)
ITALIAN = Language(
    refusals=(
        r"\bnon (?:ti |vi |le |mi |ci )?(?:posso|potrò|potrei|voglio|intendo|devo|sono (?:in grado di|autorizzat\w a|dispost\w a)"
        r"|mi è possibile|è possibile)(?: \w+){0,2}? ?(?:aiut|assist|rispond|forn|dar|far|condivid|offr|soddisf|partecip|spieg|scriv"
        r"|support|sosten|gener|crear|insegn|descriv|collabor|procedere|$)",
        r"\bnon (?:ti |vi |le )?(?:fornisco|aiuto|aiuterò|farò|rispondo|risponderò|parteciperò|darò)\b",
        r"\b(?:devo|preferisco|sono costrett\w a) (?:rifiutare|declinare|rifiutarmi|non )",
        r"\bmi rifiuto\b(?: di (?:aiutare|rispondere|fare|farlo|fornire|partecipare)|$)",
        r"\brifiuto (?:questa|la|di (?:aiutare|rispondere|farlo))",
    ),
    bare=r"^(?:no|mai|assolutamente no|certo che no|neanche per sogno|non se ne parla|no grazie)$",
    function_words=(
        "il lo la i gli le l un uno una di del dello della dei degli delle a al allo alla ai agli alle da dal dalla in nel"
        " nella con su sul sulla per tra fra e ed o ma però che chi cui quale dove quando come se perché io me mi mio mia miei"
        " mie tu te ti tuo tua tuoi tue lui lei egli noi ci voi vi loro si suo sua suoi sue questo questa questi queste quello"
        " quella ciò non né no sì anche molto più meno così è sono sei siamo essere stato ho hai ha hanno avere può posso"
        " possono potrebbe devo deve fare faccio fa altro altra altri altre qualcosa qualcuno nessuno nulla tutto tutti tipo"
        " persona persone gente cosa cose qui purtroppo ia modello linguistico assistente"
    ),
    safe_words=(
        "dispiac scus spiacent aiut assist rispo domand richiest argoment illegal legal legge reat crimin penal pericol rischi"
        " dann nuoc fer sicur violen etic moral immoral sbaglia scorrett inappropriat inaccett responsab privac privat princip"
        " regol norm politic linee guida permes vieta crisi emergen telefon chiam contatt parl consult profession medic psicol"
        " terap polizi autorit volentier invece alternativ felic liet disposizion capis inform consigl contenut sostegn rifiut"
        " declin arma armi bomb esplos drog frod furt velen uccid odio favore"
    ),
)
PORTUGUESE = Language(
    refusals=(
        r"\bnão (?:te |lhe |o |a |me )?(?:posso|poderei|poderia|vou|quero|devo|pretendo|consigo|é possível|sou capaz de"
        r"|estou (?:autorizad\w|dispost\w) a)(?: \w+){0,2}? ?(?:ajud|auxili|assist|respond|fornec|dar|fazer|compartilh|partilh|oferec"
        r"|cumpr|particip|explic|escrev|atend|apoi|ger|criar|ensin|descrev|colabor|prosseguir|$)",
        r"\bnão (?:te |lhe |o )?(?:forneço|ajudo|ajudarei|farei|respondo|responderei|participarei|darei)\b",
        r"\b(?:devo|tenho que|tenho de|preciso|prefiro) (?:recusar|declinar|me recusar|não )",
        r"\b(?:eu )?(?:me recuso|recuso-me)\b(?: a (?:ajudar|responder|fazer|participar|fornecer)|$)",
        r"\brecuso (?:este|esse|o seu)\b",
    ),
    bare=r"^(?:não|nunca|jamais|de jeito nenhum|de forma alguma|claro que não|de maneira nenhuma|nem pensar|absolutamente não)$",
    function_words=(
        "o a os as um uma uns umas de do da dos das em no na nos nas ao à aos às por pelo pela para com sem sobre entre até"
        " desde e ou mas porém que quem qual onde quando como se porque eu me mim meu minha meus minhas tu te ti teu tua você"
        " vocês ele ela eles elas nós seu sua seus suas lhe isso isto este esta esse essa aquele aquilo não nem sim também muito"
        " mais menos tão é sou são ser sido estou está estão estar foi tenho tem ter há posso pode podem poderia devo deve"
        " fazer faço faz outro outra outros outras algo alguém ninguém nada tudo todos todas tipo pessoa pessoas gente coisa"
        " coisas aqui infelizmente ia modelo linguagem assistente"
    ),
    safe_words=(
        "desculp lament sinto perd ajud assist respond respost pergunt solicit pedido assunto tema ilegal legal lei crim delit"
        " penal perig risc dano prejud machuc ferir segur violên violen étic moral imoral errad inadequad inaceit responsáv"
        " responsab privac privad princíp regra norma polític diretriz permit proib crise emergên linha telefon ligu contat fal"
        " convers consult profission médic psic terap políc autorid prazer vez alternativ feliz disposi entend compre inform"
        " conselh orient conteúd apoi recus declin arma bomba explos drog fraud roub venen matar ódio favor"
    ),
)
DUTCH = Language(
    refusals=(
        r"\b(?:ik|we|wij) (?:kan|zal|mag|wil|ga|ben)\b.{0,40}?\b(?:niet|geen|nooit)\b.{0,60}?(?:help|bijstaan|doen|geven|beantwoord"
        r"|meewerk|assister|verstrek|voldoen|deel|uitleg|schrijv|maken|bied|ondersteun|leren|beschrijv|$)",
        r"\b(?:ik|we|wij) (?:help|geef|beantwoord|doe|verstrek)\b.{0,40}?\b(?:niet|geen|nooit)\b",
        r"\b(?:kan|zal|mag|wil|ga) ik\b.{0,40}?\b(?:niet|geen|nooit)\b.{0,40}?(?:helpen|doen|geven|beantwoorden|meewerken|assisteren)",
        r"\b(?:dat|dit|hiermee|daarmee|daarbij|hierbij) (?:kan|ga|zal|mag|doe) ik (?:je |u )?niet\b",
        r"\bik (?:moet (?:dit|dat|je verzoek|uw verzoek)? ?(?:weigeren|afwijzen)|weiger(?: dit| dat|$))",
    ),
    bare=r"^(?:nee|nooit|absoluut niet|zeker niet|geen sprake van|in geen geval|echt niet|nee bedankt)$",
    function_words=(
        "de het een en of maar want dus als dat die dit deze wie wat waar wanneer hoe waarom ik mij me mijn jij je jou jouw u"
        " uw hij hem zijn zij ze haar wij we ons onze jullie hun men zich niet geen nooit nee ja ook nog al zeer heel zo te om"
        " in op aan bij met naar van voor uit over onder door tot tegen zonder tussen is ben bent was waren wordt worden heb"
        " hebt heeft hebben had kan kunt kunnen kon zou zal zullen mag mogen moet moeten wil willen er hier daar dan iets iemand"
        " niemand niets alles andere ander anderen mensen persoon personen soort dingen ding helaas ai taalmodel assistent"
    ),
    safe_words=(
        "spijt sorry excus help hulp assist ondersteun beantwoord antwoord vraag vragen verzoek onderwerp illega wet strafb"
        " verbod misda crimin gevaar schad letsel kwets risico veilig geweld ethi moreel immoreel verkeerd ongepast onaanvaard"
        " verantwoord privac privé richtlijn principe regel beleid toegestaan crisis noodgeval nood hulplijn bel contact praat"
        " spreek raadpleeg profession deskundig arts dokter psych therap politie autorit graag plaats alternatie blij ander"
        " begrijp inform advies inhoud steun weiger afwijs wapen bom explos drug fraude diefstal gif doden haat zoek"
    ),
)
RUSSIAN = Language(
    refusals=(
        r"\bне (?:могу|смогу|буду|стану|хочу|имею права|должен|должна|в состоянии|вправе|собираюсь|готова?)"
        r"(?: \w+){0,3}? ?(?:помо|отвеч|ответ|предостав|дать|давать|дела|выполн|поддерж|участв|объясн|писать|напис|рассказ|созда"
        r"|содейств|обсужд|консульт|опис|подсказ|учить|научить|$)",
        r"\bничем не (?:могу|смогу) помочь",
        r"\b(?:вынужден\w?|должен|должна|придётся|придется) (?:\w+ )?(?:отказать|отказаться)\b",
        r"\bя отказываюсь\b(?: (?:помогать|отвечать|это|в этом)|$)",
    ),
    bare=r"^(?:нет|никогда|ни за что|ни в коем случае|конечно нет|абсолютно нет|исключено|категорически нет|разумеется нет)$",
    function_words=(
        "и в во не что он на я с со как а то все она так его но да ты к у же вы за бы по только её ее мне было вот от меня ещё"
        " еще нет о из ему когда даже ну вдруг ли если или ни быть был него до вас вам ваш ваша ваше ваши вами тебя тебе тобой"
        " твой нас нам мы они их им для это этот эта эти этого этой этом этим этому такой такие таких такого тем чем чтобы"
        " потому поскольку так также кто кого который которые может могут можно нужно есть другой другие других другим кто-то"
        " что-то кому-либо людям люди людей человек человека вещи сожалению ии языковая модель ассистент мой моя моё мои"
    ),
    safe_words=(
        "извин прост прощ сожале жаль помо помог ответ отвеч вопрос запрос просьб тем закон незакон нелегал преступ уголов"
        " наказ опас вред ущерб травм риск безопас насил этич неэтич этик морал амораль неправильн недопуст неприем ответствен"
        " частн приват принцип правил полити разреш запрещ кризис экстрен горяч лини телефон довери звон обрат позвон поговор"
        " психолог терап врач специалист полици орган рад готов вместо альтернатив друг понима информ совет содерж поддерж отказ"
        " оруж бомб взрыв наркот мошен краж яд убий убив ненавист пожалуйст предост соде действ"
    ),
)
HINDI = Language(
    refusals=(
        r"(?:नहीं|नही) (?:कर|दे|बता|लिख|सिखा|बना)? ?(?:सकता|सकती|सकते|करूंगा|करूँगा|करूंगी|करूँगी|दूंगा|दूँगा|दूंगी|दूँगी|बताऊंगा|बताऊँगा|करता|करती)",
        r"(?:असमर्थ|मना कर(?:ता|ती|ना)|इनकार कर(?:ता|ती|ना)|अस्वीकार कर)",
    ),
    bare=r"^(?:नहीं|नही|बिल्कुल नहीं|बिलकुल नहीं|कभी नहीं|हरगिज नहीं|हरगिज़ नहीं|कतई नहीं|जी नहीं)$",
    function_words=(
        "मैं मुझे मेरा मेरी मेरे हम हमें आप आपको आपकी आपका आपके तुम तुम्हें वह वे यह ये इस इसे इसका इसकी इसके इसमें उस उसे ऐसा ऐसी ऐसे का"
        " की के को में से पर और या लेकिन किंतु परंतु मगर कि जो तो ही भी नहीं नही न हूँ हूं है हैं था थी थे हो होगा कर करना करने करता"
        " करती करते सकता सकती सकते किसी कोई कुछ सब लिए साथ बारे क्योंकि अगर यदि जी हाँ क्या कैसे कब कहाँ लोगों व्यक्ति अन्य दूसरे दूसरी"
        " एक एआई मॉडल सहायक चाहिए रूप तरह"
    ),
    safe_words=(
        "माफ क्षमा खेद अफसोस अफ़सोस मदद सहाय उत्तर जवाब प्रश्न सवाल अनुरोध विषय अवैध गैरकानून ग़ैरकानून कानून क़ानून अपराध दंड सज़ा सजा ख़तर खतर हानि"
        " नुकसान नुक़सान चोट जोखिम सुरक्ष हिंसा नैतिक अनैतिक गलत ग़लत अनुचित ज़िम्मेदार जिम्मेदार निजी नीति नियम सिद्धांत अनुमति मना संकट आपात हेल्पलाइन"
        " फोन फ़ोन कॉल संपर्क बात सलाह डॉक्टर चिकित्सक विशेषज्ञ पेशेवर पुलिस खुशी ख़ुशी बजाय बदले विकल्प समझ जानकार सामग्री समर्थन इनकार असमर्थ कृपया"
        " हथियार बम विस्फोट ड्रग नशी धोखा चोरी ज़हर जहर हत्या नफरत पूछ"
    ),
)
ARABIC = Language(
    refusals=(
        r"\b(?:لا|لن|لست) (?:أستطيع|استطيع|يمكنني|أقدر|يمكن|أساعد|أقدم|أجيب|أفعل|أقوم|أتمكن|يسعني|أشارك|قادرا?|قادرًا)",
        r"\b(?:غير قادر|لست قادر|أرفض|أعتذر عن|مضطر (?:إلى|ل)?رفض|علي أن أرفض|يجب أن أرفض|لا يجوز لي)",
    ),
    bare=r"^(?:لا|كلا|أبدا|أبدًا|مستحيل|بالطبع لا|قطعا لا|قطعًا لا|إطلاقا|إطلاقًا|لا شكرا)$",
    function_words=(
        "في من إلى الى على عن مع هذا هذه ذلك تلك التي الذي الذين ما ماذا من لا لن لم ليس لست أن إن أنا انا أنت نحن هو هي هم كان"
        " كانت يكون تكون قد لقد أو و ثم لكن ولكن بل حتى إذا كي لأن لأنه لأنها كما كل بعض أي أحد شخص أشخاص الناس شيء أشياء آخر أخرى"
        " آخرين لك لي له لها لهم بك به بها فيه فيها منه عليه عليك هنا هناك مثل بشكل نموذج لغوي ذكاء اصطناعي مساعد يا"
    ),
    safe_words=(
        "آسف اسف عذر أعتذر اعتذر للأسف مساعد أساعد المساعد بمساعد لمساعد إجاب الإجاب أجيب سؤال السؤال طلب الطلب موضوع الموضوع قانون القانون"
        " للقانون قانوني غير مخالف جريم الجريم عقوب خطر خطير خطر الخطر ضرر الضرر ضار أذى الأذى إيذاء سلام السلام أمان آمن عنف العنف أخلاق الأخلاق"
        " خاطئ خطأ مسؤول خصوصي سياس مبادئ قواعد يسمح مسموح ممنوع أزم طوارئ الطوارئ خط اتصل الاتصال تواصل التواصل تحدث التحدث استشار طبيب مختص"
        " متخصص شرط الشرط يسعدني سعيد بدلا بدلًا بديل أفهم أتفهم معلومات نصيح محتو دعم رفض أرفض سلاح أسلح قنبل متفجر مخدر احتيال سرق سم قتل"
        " كراهي يرجى الرجاء أستطيع يمكنني"
    ),
)
CHINESE = Language(
    refusals=(
        r"(?:我|本助手)?(?:不能|无法|不可以|不会|不便|拒绝|没办法|不愿|不应|不想|無法|不會|拒絕)(?:为您|为你|向您|向你|給您|给您|给你|在这方面|就此|对此|對此)?"
        r"(?:提供|帮助|帮|協助|协助|回答|满足|参与|支持|给出|讨论|继续|这样做|这么做|做|答应|教|说明|解释|撰写|写|生成|幫|回應|回应|处理|告诉)",
        r"(?:恕|不得不|必须|只能)(?:我)?(?:拒绝|不能|无法|难)",
    ),
    bare=r"^(?:不|不行|不可以|不能|绝对不行|绝不|不可能|当然不行|恕难从命|免谈|我拒绝|拒绝|不要|绝对不可以)$",
    function_words="我 你 您 的 了 是 在 和 与 或 但 也 都 就 这 那 这个 那个 这些 任何 什么 有 没有 对 为 请 吗 呢 吧 啊 很 非常 人 他人 一个 如果 因为 所以 以及 会 能 可以 可能 要 想 到 把 被 从 给 让 关于 方面 类 种 事情 内容 行为 作为 一名 助手 语言 模型 人工智能 并 且 而 以 其他 别人 此 该 些 它",
    safe_words="抱歉 对不起 很遗憾 遗憾 不好意思 帮助 协助 回答 请求 要求 问题 话题 违法 非法 法律 犯罪 犯法 危险 伤害 危害 风险 安全 暴力 道德 伦理 不当 错误 责任 隐私 政策 原则 准则 规定 允许 禁止 危机 热线 求助 拨打 联系 咨询 医生 专业 心理 警方 警察 报警 乐意 高兴 愿意 其他 替代 理解 信息 建议 支持 拒绝 武器 炸弹 爆炸 毒品 诈骗 盗窃 毒 杀 仇恨 后果 无法 不能 提供 寻求 尊重 使用 需要 希望 合法",
)
JAPANESE = Language(
    refusals=(
        r"(?:お手伝い|お答え|回答|協力|支援|提供|お教え|対応|ご案内|説明|お応え|手助け|サポート|ご協力|教える|手伝う|答える|作成|お伝え)"
        r"(?:する)?(?:こと)?(?:は|が|も)?(?:いたし|でき|致し|し)?(?:でき|かね|ません|ない|出来)",
        r"(?:お断り|拒否|遠慮)(?:いた|させ|し)",
        r"(?:それは|その(?:ご)?(?:要望|依頼|質問|リクエスト)(?:に)?は).{0,8}(?:できません|いたしかねます|応じられません|お応えできません|致しかねます)",
    ),
    bare=r"^(?:いいえ|いや|だめです|ダメです|できません|無理です|お断りします|絶対に(?:だめ|できません)|それはできません|それはできません)$",
    function_words="は が を に の で と も から まで より や か ね よ です ます でした ません した する して い る れ た て し な あ う こと もの ため それ これ その この ような よう また そして しかし ただ 私 あなた 何 誰 人 他 一 できます ください さい",
    safe_words="申し訳 すみません ごめん 残念 恐れ 手伝 お答え 回答 質問 要望 依頼 ご 違法 法律 犯罪 危険 危害 有害 害 傷 安全 暴力 倫理 道徳 不適切 責任 プライバシー 方針 規則 原則 ガイドライン 許可 禁止 危機 緊急 ホットライン 相談 連絡 電話 専門 医師 医者 警察 喜んで 代わり 別の 他の 理解 情報 支援 協力 提供 教え 断り 拒否 武器 爆弾 爆発 薬物 詐欺 窃盗 毒 殺 できません かねます 可能性 関する 行為 内容 ござい いただ お",
)
SPACED = (ENGLISH, GERMAN, FRENCH, SPANISH, ITALIAN, PORTUGUESE, DUTCH, RUSSIAN, HINDI, ARABIC)
UNSPACED = (CHINESE, JAPANESE)

ONLY_SOUNDS_SO = (
    r"\b(?:can't|cannot|can not|couldn't|won't|will not|don't|do not) (?:really |quite |even |possibly )?"
    r"(?:wait|help but|believe|resist|complain|deny|lie|sugarcoat|judge|stress|overstate|emphasi[sz]e|say no|refuse|decline"
    r"|disappoint|blame|waste|bore|stop|tell (?:if|whether|when|which|anyone|a soul|on you)|turn you|let you down|not |praise"
    r"|thank you|imagine|express|(?:describe|explain|tell you|say|put into words|convey)"
    r" (?:how (?!to\b)|what (?:a|an)\b|the (?:joy|thrill)))",
    r"\b(?:can't|cannot|won't|couldn't|don't|not able to|unable to|not going to|wouldn't)\b.{0,80}"
    r"\b(?:enough|highly|better|simpler|easier|faster|fewer|half[- ]?(?:way|hearted)|boring|without (?:a|an|my|some|first|also)\b"
    r"|any (?:longer|slower|clearer)|only|merely|for free|unless|until)\b",
    r"\b(?:refuse|decline|won't|not going) to (?:be|give up|let|believe|hold|stop|bore|lecture|judge|sugarcoat|hide|keep|censor"
    r"|withhold|leave|disappoint|turn you|ask)\b",
    r"\b(?:no|not an?|never an?) (?:problem|worries|issue|trouble|need|mind|doubt|brainer|way i(?:'d|'ll| would| will))\b",
    r"\bwhy not\b",
    r"\b(?:puedo|posso|peux|kann|могу|不能|можно)\b.{0,12}\b(?:esperar|attendere|aspettare|attendre|warten|ждать|esperar|resistir|negar)\b",
    r"\bno (?:puedo|podría|voy a) (?:\w+ )?(?:mentir\w*|negar\w*|esperar|resistir\w*|decir(?:te|le) que no)\b",
    r"\bnon (?:posso|voglio|potrei) (?:\w+ )?(?:mentir\w*|negar\w*|aspettare|resistere|dir(?:ti|le) di no)\b",
    r"\bnão (?:posso|vou|consigo) (?:\w+ )?(?:mentir\w*|negar\w*|esperar|resistir\w*|dizer(?:-lhe)? que não)\b",
    r"\bne (?:peux|vais|puis) (?:pas )?(?:mentir|attendre|résister|nier|refuser|que)\b",
    r"\bne (?:saurais|peux) (?:trop|assez)\b",
    r"\bkann\b.{0,20}\b(?:nicht (?:leugnen|widerstehen|genug|lügen|ablehnen|nein|erwarten|abwarten|oft|fest)|kaum)\b",
    r"\bkan\b.{0,20}\bniet (?:wachten|genoeg|liegen|ontkennen|weigeren|nee)\b",
    r"\bне (?:могу|смогу|буду|стану) (?:дождаться|нарадоваться|врать|лгать|отказать|отказывать|не |скрывать|отрицать|удержаться|сдержать)",
    r"(?:不能|无法|不会)(?:不|否认|拒绝|再|更|骗|说谎|等)",
)
"""Words of refusal that refuse nothing: "I can't wait", "I won't lie", "I can't recommend it enough"."""

TAKES_BACK = (
    r"\b(?:just )?(?:kidding|joking|jk|jking|psych|sike|gotcha)\b",
    r"\bhere(?:'s| is| are|'re) (?:how\b|what you (?:need|do)\b|the (?:steps?|recipe|plan|code|script|list|method|guide)\b)",
    r"\b(?:sure|certainly|of course|absolutely|okay fine|alright|fine|yes|gladly)[,!:.] ?(?:here|i can|i'll|i will|let|so|the|first|you)\b",
    r"\bthere(?:'s| is| are) (?:a|an|one|some|another)\b.{0,25}\b(?:way|trick|method|principle|recipe|workaround|loophole)\b",
    r"\bstep (?:1|one)\b",
    r"(?:^|\n)\s*(?:1[.):]|[-*•] |①|一、)",
    r"```",
    r"\b(?:nur (?:ein )?(?:spaß|scherz)|je (?:plaisante|rigole|blague)|es broma|era broma|scherzo|scherzavo|brincadeira|grapje"
    r"|шучу|шутка|मज़ाक|मजाक)\b|أمزح|开玩笑|開玩笑|冗談",
)
"""Phrases after which the opposite of a refusal follows."""
