"""Settings of the ledger, from environment variables INVENTORY_…"""

import os
from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Annotated, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "INVENTORY_"
MYSQL_PORT = 3306
MYSQL_SERVERS_MAX = 64
_TLS_WORDS = ("off", "on", "verify")
_ALIKE = 0.85
"""From here on a name is a misspelt one, see difflib; two settings of the service are less alike."""

Settings = TypeVar("Settings", bound=BaseSettings)


def take_no_arguments(program: str, what: str) -> None:
    """Answer `--help`, and refuse everything else on the command line: exits with 2 and one line."""
    ArgumentParser(
        prog=program,
        description=what,
        epilog=f"All settings come from the environment, as {PREFIX}…; .env.example has every one.",
    ).parse_args()


class SettingsError(ValueError):
    """Settings that a process cannot work with; its text is one line that names all of them."""


@dataclass(frozen=True, slots=True)
class MysqlUrl:
    """Where one MySQL server is and how to log in."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    tls: str = "off"
    """off; on: encrypted, whoever the server is; verify: its certificate is checked, too."""
    ca: str = ""
    """File with the certificates to check against; empty: the system's."""

    def is_same_database(self, other: "MysqlUrl") -> bool:
        """Whether both lead to one database, as far as the URLs tell."""
        return (self.host, self.port, self.database) == (other.host, other.port, other.database)

    def __str__(self) -> str:
        return f"{self.user}@{self.host}:{self.port}/{self.database}"


class LedgerSettings(BaseSettings):
    """How to reach MySQL."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, extra="ignore")

    mysql_urls: SecretStr = SecretStr("mysql://inventory:inventory@127.0.0.1:3306/inventory")
    """mysql://user:password@host:port/database?tls=off|on|verify&ca=FILE; several with commas between
    them share the products out. Their number and order are fixed for a cluster's life."""
    mysql_connections: Annotated[int, Field(ge=1, le=500)] = 8
    """Connections that one process opens at most to each server."""
    mysql_connect_timeout_ms: Annotated[int, Field(ge=50, le=60_000)] = 3_000
    mysql_timeout_ms: Annotated[int, Field(ge=100, le=600_000)] = 15_000
    """How long a transaction may take before its connection counts as lost."""
    mysql_lock_wait_s: Annotated[int, Field(ge=1, le=600)] = 2
    """How long a transaction waits for a row that another one holds."""
    event_ttl_s: Annotated[int, Field(ge=60, le=31_536_000)] = 604_800
    """How long callers' events are kept for those who read them late."""

    @field_validator("mysql_urls")
    @classmethod
    def _servers(cls, value: SecretStr) -> SecretStr:
        parse_urls(value.get_secret_value())
        return value

    @property
    def mysql_servers(self) -> tuple[MysqlUrl, ...]:
        """In the order of the setting, at least one."""
        return parse_urls(self.mysql_urls.get_secret_value())


class DemandSettings(BaseSettings):
    """When a product is hot; the servers and the workers must agree on it."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, extra="ignore")

    hot_rate_per_s: Annotated[int, Field(ge=1, le=10_000_000)] = 20_000
    """Requests a second on one shard above which a product gets more shards."""


def parse_urls(text: str) -> tuple[MysqlUrl, ...]:
    """Read one URL or several with commas between them; ValueError, without a password in it."""
    texts = text.split(",")
    if len(texts) == 1:
        return (parse_url(text),)
    if len(texts) > MYSQL_SERVERS_MAX:
        raise ValueError(
            f"names {len(texts)} MySQL servers, at most {MYSQL_SERVERS_MAX} are possible"
        )
    found = tuple(_numbered(number, each) for number, each in enumerate(texts, 1))
    for position, url in enumerate(found):
        if any(url.is_same_database(other) for other in found[:position]):
            raise ValueError(f"names {url.host}:{url.port}/{url.database} twice")
    return found


def _numbered(number: int, text: str) -> MysqlUrl:
    try:
        return parse_url(text)
    except ValueError as error:
        raise ValueError(f"server {number} {error}") from None


def parse_url(text: str) -> MysqlUrl:
    """Read `mysql://user:password@host:port/database`; ValueError, without the password in it."""
    parts = urlsplit(text.strip())
    database = parts.path.removeprefix("/")
    if parts.scheme != "mysql" or not parts.hostname or not parts.username:
        raise ValueError("is not mysql://user:password@host:port/database")
    if not database or "/" in database:
        raise ValueError("names no database: mysql://user:password@host:port/database")
    tls, ca = _tls(parts.query)
    return MysqlUrl(
        host=parts.hostname,
        port=parts.port or MYSQL_PORT,
        user=unquote(parts.username),
        password=unquote(parts.password or ""),
        database=unquote(database),
        tls=tls,
        ca=ca,
    )


def read_settings(kind: type[Settings]) -> Settings:
    """A process's settings from its environment. SettingsError."""
    misspelt = misspelt_settings(kind, os.environ)
    if misspelt:
        raise SettingsError(
            "; ".join(f"{name} is no setting: {known} is" for name, known in misspelt.items())
        )
    try:
        return kind()
    except ValidationError as error:
        raise SettingsError(_explained(error)) from error


def misspelt_settings(kind: type[BaseSettings], environment: Mapping[str, str]) -> dict[str, str]:
    """What an environment has almost by the name of a setting, and not by the name itself.

    Whatever else begins with INVENTORY_ may be another program's, or Kubernetes' own.
    """
    known = [f"{PREFIX}{name}".upper() for name in kind.model_fields]
    missing = [name.removeprefix(PREFIX) for name in known if name not in environment]
    found: dict[str, str] = {}
    for name in sorted(environment):
        if not name.startswith(PREFIX) or name in known:
            continue
        for meant in get_close_matches(name.removeprefix(PREFIX), missing, n=1, cutoff=_ALIKE):
            found[name] = PREFIX + meant
    return found


def _explained(error: ValidationError) -> str:
    """All wrong settings in one line, by the names of their environment variables."""
    return "; ".join(
        _named(found["loc"]) + found["msg"].removeprefix("Value error, ")
        for found in error.errors(include_url=False, include_input=False)
    )


def _named(location: tuple[int | str, ...]) -> str:
    """What is wrong with several settings together names them itself."""
    return f"{PREFIX}{'_'.join(map(str, location)).upper()}: " if location else ""


def _tls(query: str) -> tuple[str, str]:
    options = {name: values[-1] for name, values in parse_qs(query).items()}
    tls, ca = options.pop("tls", "off"), options.pop("ca", "")
    if options:
        raise ValueError(f"has an unknown option: {', '.join(sorted(options))}")
    if tls not in _TLS_WORDS:
        raise ValueError(f"tls is one of {', '.join(_TLS_WORDS)}")
    return tls, ca
