"""Where this machine keeps the servers that the stack runs."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from deploy.local.errors import StackError

# Servers are in /usr/sbin, which is on root's PATH only.
SEARCH_PATH = os.pathsep.join(
    [os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"]
)


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
        redis=_first("redis-server", "valkey-server") if with_redis else None,
        mysql=mysql,
        mariadb_install_db=_first("mariadb-install-db") if is_mariadb else None,
    )


def _first(*names: str) -> Path:
    for name in names:
        if found := shutil.which(name, path=SEARCH_PATH):
            return Path(found)
    raise StackError(f"no {' or '.join(names)} on this machine: run deploy/bootstrap")
