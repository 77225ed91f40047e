"""The mail provider of a domain. Pure.

The table has the large public providers; any other domain is its own provider.
"""

_DOMAINS = {
    "google": "gmail.com googlemail.com",
    "microsoft": "outlook.com hotmail.com live.com msn.com hotmail.co.uk hotmail.fr hotmail.de live.co.uk outlook.de",
    "yahoo": "yahoo.com yahoo.co.uk yahoo.de yahoo.fr yahoo.co.jp ymail.com rocketmail.com aol.com aim.com",
    "apple": "icloud.com me.com mac.com",
    "gmx": "gmx.de gmx.net gmx.at gmx.ch gmx.com web.de mail.com",
    "mailru": "mail.ru inbox.ru list.ru bk.ru",
    "yandex": "yandex.ru yandex.com ya.ru",
    "orange": "orange.fr wanadoo.fr",
    "comcast": "comcast.net",
    "proton": "proton.me protonmail.com pm.me",
    "qq": "qq.com foxmail.com",
    "netease": "163.com 126.com yeah.net",
}
PROVIDERS = {domain: name for name, domains in _DOMAINS.items() for domain in domains.split()}


def provider_of(domain: str) -> str:
    """The provider of a normalised domain: a name of the table, or the domain itself."""
    return PROVIDERS.get(domain, domain)
