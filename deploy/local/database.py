"""A private MariaDB or MySQL with the ledger's database and its user."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

import aiomysql
import pymysql

from deploy.local.errors import StackError
from deploy.local.ports import HOST
from deploy.local.process import Process
from deploy.local.programs import Programs

CONFIG = Path(__file__).parents[1] / "mariadb.cnf"
NAME = USER = "inventory"

# Run at each start, before the first connection. Tests make databases of their own beside ours.
INIT_SQL = """\
CREATE DATABASE IF NOT EXISTS {name};
CREATE USER IF NOT EXISTS '{user}'@'{host}' IDENTIFIED {plugin} BY '{password}';
GRANT ALL ON `{name}%`.* TO '{user}'@'{host}';
"""


class Database:
    """The server process, and how to reach it."""

    def __init__(
        self, programs: Programs, *, port: int, password: str, directory: Path, number: int = 0
    ) -> None:
        """`number`: of several servers in one directory, from 0 on."""
        name = f"mysql-{number}" if number else "mysql"
        self.port = port
        self.url = f"mysql://{USER}:{password}@{HOST}:{port}/{NAME}"
        self._password = password
        self._programs = programs
        self._directory = directory
        self._logs = directory / "logs"
        self._name = name
        self._data = directory / name
        # Two servers that share a folder for temporary tables remove each other's at start.
        self._temporary = directory / f"{name}.tmp"
        self._init_sql = directory / f"init-{name}.sql"
        self.process = Process(
            name,
            [str(programs.mysql), *self._settings()],
            log=self._logs / f"{name}.log",
            directory=directory,
            ready=self.answers,
        )

    def _settings(self) -> list[str]:
        settings = [
            f"--defaults-file={CONFIG}",  # must come first
            *self._data_settings(self._data),
            f"--bind-address={HOST}",
            f"--port={self.port}",
            # Relative to the data folder: an absolute path may be longer than a socket's may be.
            "--socket=mysql.sock",
            "--pid-file=mysql.pid",
            f"--init-file={self._init_sql}",
        ]
        if not self._is_mariadb:
            # MySQL 8.4 knows this way to log in, and has it switched off.
            settings.append("--loose-mysql-native-password=ON")
        return settings

    async def start(self) -> None:
        """Make the data folder if there is none, start the server, wait until it answers."""
        self._temporary.mkdir(exist_ok=True)
        if not self._data.exists():
            await self._initialise()
        self._init_sql.touch(mode=0o600)
        self._init_sql.write_text(
            INIT_SQL.format(
                name=NAME,
                user=USER,
                host=HOST,
                password=self._password,
                plugin="" if self._is_mariadb else "WITH mysql_native_password",
            )
        )
        await self.process.start()

    async def answers(self) -> bool:
        """Whether the ledger's user gets a connection."""
        with suppress(pymysql.OperationalError, OSError):
            connection = await aiomysql.connect(
                host=HOST,
                port=self.port,
                user=USER,
                password=self._password,
                db=NAME,
                connect_timeout=2,
            )
            await connection.ensure_closed()
            return True
        return False

    @property
    def _is_mariadb(self) -> bool:
        return self._programs.mariadb_install_db is not None

    async def _initialise(self) -> None:
        """Fill a folder beside the data folder and rename it: a half-made one is never used."""
        unfinished = self._directory / f"{self._name}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        installation = Process(
            f"{self._name}-initialise",
            [*self._initialise_command(), *self._data_settings(unfinished)],
            log=self._logs / f"{self._name}-initialise.log",
            directory=self._directory,
        )
        await installation.start()
        try:
            exit_code = await installation.wait()
        finally:
            installation.kill()
        if exit_code != 0:
            raise StackError(f"MySQL could not be initialised; {installation.last_words()}")
        unfinished.rename(self._data)

    def _initialise_command(self) -> list[str]:
        defaults = f"--defaults-file={CONFIG}"
        if self._programs.mariadb_install_db is None:
            return [str(self._programs.mysql), defaults, "--initialize-insecure"]
        return [
            str(self._programs.mariadb_install_db),
            defaults,
            "--auth-root-authentication-method=normal",
            "--force",  # a machine whose own name does not resolve is good enough
            "--skip-test-db",
        ]

    def _data_settings(self, folder: Path) -> list[str]:
        settings = [f"--datadir={folder}", f"--tmpdir={self._temporary}"]
        if os.geteuid() == 0:
            settings.append("--user=root")  # it refuses to run as root unless told to
        return settings
