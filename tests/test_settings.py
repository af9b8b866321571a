"""Settings come from the environment, and a wrong one is refused at start with a sentence that says what to do."""

import os
import re
import runpy
import shutil
import stat
import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from sessions_app.checks import proxies_are_known
from sessions_app.setting_checks import static_files_are_collected
from tools.processes import CELERY, MANAGE, PROJECT, environment, run


@pytest.fixture
def load(monkeypatch, tmp_path):
    """Read a copy of the settings file, in a project directory of its own, under the given environment."""
    (tmp_path / "agentstate").mkdir()
    copy = shutil.copy(PROJECT / "agentstate" / "settings.py", tmp_path / "agentstate")
    monkeypatch.setattr("agentstate.installation._PARENT", tmp_path)

    def load(**env):
        for name in ("SECRET_KEY", "HTTPS", "TRUSTED_PROXIES", "DATABASE_URL", "PGOPTIONS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        return runpy.run_path(copy)

    return load


@pytest.mark.parametrize(
    "env, sentence",
    [
        ({"AGENTSTATE_LEASE_SECONDS": "9"}, "AGENTSTATE_LEASE_SECONDS (9) must be at least twice"),
        ({"AGENTSTATE_HEARTBEAT_SECONDS": "7"}, "must be at least twice AGENTSTATE_HEARTBEAT_SECONDS (7)"),
        (
            {"AGENTSTATE_SWEEP_SECONDS": "0"},
            "AGENTSTATE_SWEEP_SECONDS must be a number of seconds above 0, not 0.",
        ),
        (
            {"AGENTSTATE_SLICE_SECONDS": "-1"},
            "AGENTSTATE_SLICE_SECONDS must be a number of seconds above 0, not -1.",
        ),
        ({"AGENTSTATE_SLICE_SECONDS": "nan"}, "AGENTSTATE_SLICE_SECONDS"),
        (
            {"AGENTSTATE_RESERVED_THREADS": "-1"},
            "AGENTSTATE_RESERVED_THREADS must be at least 0, not -1.",
        ),
        ({"AGENTSTATE_KEEP_MB": "-1"}, "AGENTSTATE_KEEP_MB must be at least 0, not -1."),
        (
            {"AGENTSTATE_SWEEP_SECONDS": "soon"},
            "AGENTSTATE_SWEEP_SECONDS must be a number of seconds, not 'soon'.",
        ),
        ({"AGENTSTATE_MAX_ATTEMPTS": "0"}, "AGENTSTATE_MAX_ATTEMPTS must be at least 1, not 0."),
        ({"AGENTSTATE_CONTEXT_WINDOW": "claims=big"}, "AGENT=TOKENS for one agent, not 'claims=big'."),
        ({"AGENTSTATE_CONTEXT_WINDOW": "0"}, "AGENTSTATE_CONTEXT_WINDOW must be a number of tokens"),
        (
            {"AGENTSTATE_MASK_PATTERNS": "ok\n(a"},
            "AGENTSTATE_MASK_PATTERNS: '(a' is not a valid regular expression: missing ): (a.",
        ),
        (
            {"AGENTSTATE_MASK_PATTERNS": r"\d{4}(?!\d)"},
            r"'\\d{4}(?!\\d)' is not a valid regular expression: invalid perl operator: (?!. Patterns are those of "
            "RE2, which has no look-ahead, look-behind and backreferences.",
        ),
        (
            {"AGENTSTATE_MASK_PATTERNS": r"(a)\1"},
            "is not a valid regular expression: invalid escape sequence: \\1.",
        ),
        ({"AGENTSTATE_MASK_PATTERNS": r"\d*"}, "matches the empty text"),
        *(
            ({"AGENTSTATE_MASK_KEYS": keys}, f"a value with the name {wrong!r} itself would not be hidden")
            for keys, wrong in (
                ("!!", "!!"),
                ("iban,--,pin", "--"),
                ("iban;card", "iban;card"),
                ("iban|card", "iban|card"),
                ("iban\ncard;pin", "card;pin"),
                ("/payee/iban", "/payee/iban"),
            )
        ),
        ({"DEBUG": "perhaps"}, "DEBUG must be true or false, not 'perhaps'."),
        ({"LOG_LEVEL": "loud"}, "LOG_LEVEL must be DEBUG, INFO, WARNING, ERROR or CRITICAL, not 'loud'."),
        ({"TRUSTED_PROXIES": "-1"}, "TRUSTED_PROXIES must be at least 0, not -1."),
        ({"AGENTSTATE_PROCESSES": "-3"}, "AGENTSTATE_PROCESSES must be at least 1, not -3."),
        ({"AGENTSTATE_PROCESSES": "0"}, "AGENTSTATE_PROCESSES must be at least 1, not 0."),
        ({"AGENTSTATE_PROCESSES": "two"}, "AGENTSTATE_PROCESSES must be a whole number, not 'two'."),
        ({"SECURE_HSTS_SECONDS": "-1"}, "SECURE_HSTS_SECONDS must be at least 0, not -1."),
        ({"AGENTSTATE_CONNECTIONS": "-1"}, "AGENTSTATE_CONNECTIONS must be at least 0, not -1."),
        ({"AGENTSTATE_CONNECTIONS": "999999"}, "AGENTSTATE_CONNECTIONS must be at most 262,143, not 999999."),
        *(
            (
                {"ALLOWED_HOSTS": f"localhost,{host}"},
                f"such as desk.example.com, 192.0.2.1 or [::1], and commas between them; not '{host}'.",
            )
            for host in (
                "http://desk.example.com",
                "desk.example.com:443",
                "desk.example.com/desk",
                "::1",
                "a.example b.example",
                "*.example.com",
            )
        ),
        *(
            (
                {"CSRF_TRUSTED_ORIGINS": f"https://a.example.com,{origin}"},
                f"commas between them; not '{origin}'.",
            )
            for origin in (
                "desk.example.com",
                "https://desk.example.com/",
                "https://desk.example.com/desk",
                "https://desk.example.com:443",
                "http://desk.example.com:80",
                "https://*example.com",
                "https://",
            )
        ),
        *(
            ({name: url}, f"{name}: the name of the host contains a blank.")
            for name, url in (
                ("REDIS_URL", "redis://localhost "),
                ("AGENTSTATE_MIRROR_URL", "redis://:a b@ localhost:6379/0"),
                ("DATABASE_URL", "postgres://anna@localhost /desk"),
            )
        ),
        *(
            ({"AGENTSTATE_CURRENCY": name}, f"such as EUR, not '{name}'.")
            for name in ("dollars", "eur", "€", "EURO")
        ),
        ({"SECRET_KEY": "  "}, "SECRET_KEY holds nothing but blanks"),
        ({"AGENTSTATE_STREAMS": "-1"}, "AGENTSTATE_STREAMS must be at least 0, not -1."),
        (
            {"AGENTSTATE_DEMO_DELAY": "-1"},
            "AGENTSTATE_DEMO_DELAY must be a number of seconds from 0, not -1.",
        ),
        *(
            ({"AGENTSTATE_DEMO_DELAY": text}, "AGENTSTATE_DEMO_DELAY must be a number of seconds, not ")
            for text in ("0.5s", "nan", "inf", " ")
        ),
        ({"AGENTSTATE_CONTEXT_WINDOW": "claims=-5"}, "AGENTSTATE_CONTEXT_WINDOW must be a number of tokens"),
        ({"AGENTSTATE_PRICES": "gpt=-1/2"}, "AGENTSTATE_PRICES: it must be MODEL=IN/OUT"),
        ({"TRUSTED_PROXIES": "10.0.0.1"}, "TRUSTED_PROXIES must be a whole number, not '10.0.0.1'."),
        ({"DATABASE_URL": "mysql://x"}, "DATABASE_URL must begin with"),
        *(
            ({"DATABASE_URL": url}, "DATABASE_URL must end with the name of a database, such as")
            for url in (
                "postgres://host",
                "postgres://anna:pass@host:5432/",
                "postgres://host?sslmode=require",
            )
        ),
        *(
            ({"DATABASE_URL": url}, "DATABASE_URL has an option that this database does not know")
            for url in (
                "postgres://host/name?foo=bar",
                "sqlite:///:memory:?foo=bar",
                "postgres://host/name?timeout=5",
            )
        ),
        (
            {"DATABASE_URL": "sqlite:////missing/dir/x"},
            "DATABASE_URL: there is no folder /missing/dir for the SQ",
        ),
        ({"DATABASE_URL": "sqlite:///missing/dir/x"}, "/missing/dir for the SQLite file. Create it"),
        ({"DATABASE_URL": "postgres://host/name?connections=4"}, "Set AGENTSTATE_CONNECTIONS instead"),
        ({"REDIS_URL": "localhost:6379"}, "REDIS_URL must begin with redis:// or rediss://"),
        *(
            (
                {f"AGENTSTATE_{name}_SECONDS": text},
                f"AGENTSTATE_{name}_SECONDS must be at most 86,400 seconds",
            )
            for name, text in (
                ("SWEEP", "1e10"),
                ("LEASE", "1e12"),
                ("HEARTBEAT", "1e12"),
                ("SLICE", "86401"),
                ("RETRY", "1e30"),
            )
        ),
        (
            {"AGENTSTATE_MIRROR_SECONDS": "1e20"},
            "AGENTSTATE_MIRROR_SECONDS must be at most 315,360,000 seconds, not 1e+20.",
        ),
        ({"AGENTSTATE_DEMO_DELAY": "1e20"}, "AGENTSTATE_DEMO_DELAY must be at most 86,400 seconds"),
        *(
            ({name: url}, f"{name}: the host and colon are not followed by a port from 1 to 65535.")
            for name, url in (
                ("REDIS_URL", "redis://localhost:70000"),
                ("AGENTSTATE_MIRROR_URL", "rediss://localhost:six/1"),
                ("REDIS_URL", "redis://[::1"),
                ("DATABASE_URL", "postgres://u:p@host:99999/x"),
                ("DATABASE_URL", "postgres://u:pass#word@host/x"),
            )
        ),
        *(
            ({"REDIS_URL": f"{scheme}://{rest}"}, f"REDIS_URL {sentence}")
            for scheme, rest, sentence in (
                (
                    "redis",
                    "localhost/notadb",
                    "must have nothing but the number of a database behind the host",
                ),
                ("redis", "localhost/0/1", "must have nothing but the number of a database behind the host"),
                ("redis", "localhost/?db=x", "may have no options but those for TLS"),
                ("redis", "localhost/?db=1", "may have no options but those for TLS"),
                ("redis", "localhost/?ssl_cert_reqs=none", "has an option that does not exist"),
                ("rediss", "localhost/?ssl_nonsense=1", "has an option that does not exist"),
                ("rediss", "localhost/?ssl_cert_reqs=nonsense", "must have one of none, optional, required"),
                ("rediss", "localhost/?ssl_min_version=x", "has an option that does not exist"),
            )
        ),
        (
            {"AGENTSTATE_MIRROR_URL": "redis://host/?db=x"},
            "AGENTSTATE_MIRROR_URL has an option that does not",
        ),
        (
            {"AGENTSTATE_MIRROR_URL": "redis://host/?foo=1"},
            "AGENTSTATE_MIRROR_URL has an option that does not",
        ),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_name(load, env, sentence):
    with pytest.raises(ImproperlyConfigured) as refused:
        load(**env)
    assert sentence in str(refused.value)


def test_the_address_of_a_database_in_memory_has_no_port(load):
    assert load(DATABASE_URL="sqlite://:memory:")["DATABASES"]["default"]["NAME"] == ":memory:"


@pytest.mark.parametrize(
    "url",
    [
        "postgres:///?service=desk",
        "postgres:///name?host=/run/postgresql&connect_timeout=3&isolation_level=2",
        "sqlite:///new.sqlite3?timeout=5",
        "sqlite:///file:new.sqlite3?uri=true",
    ],
)
def test_the_options_of_a_database_that_exist_are_kept(load, url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = load(DATABASE_URL=url)["DATABASES"]["default"]["OPTIONS"]
    assert {name.partition("=")[0] for name in url.partition("?")[2].split("&")} <= options.keys()


@pytest.mark.parametrize(
    "name, url",
    [
        ("DATABASE_URL", "postgres://anna:sesame#1@host/x"),
        ("DATABASE_URL", "postgres://anna:p@sesame?sesame=1@host/x"),
        ("DATABASE_URL", "postgres://anna:p@host/x?sesame=1"),
        ("REDIS_URL", "redis://:p@sesame/sesame@host:6379/0"),
        ("REDIS_URL", "redis://:p@sesame#sesame@host:6379/0"),
        ("REDIS_URL", "redis://:p@sesame?sesame@host:6379/0"),
        ("REDIS_URL", "redis://:p@sesame?sesame=1@host:6379/0"),
        ("REDIS_URL", "redis://:sesame;sesame@host:6379/0"),
        ("AGENTSTATE_MIRROR_URL", "redis://:p@sesame?sesame=1@host:6379/0"),
    ],
)
def test_an_address_that_is_refused_is_not_shown_with_its_password(load, name, url):
    with pytest.raises(ImproperlyConfigured) as refused:
        load(**{name: url})
    assert "sesame" not in "".join(traceback.format_exception(refused.value))
    assert "has to be encoded: / as %2F" in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://",
        "redis://localhost",
        "redis://localhost/",
        "redis://:p@ss@[::1]:6379/3",
        "rediss://anna:p%40ss@host/0?ssl_cert_reqs=required&ssl_ca_certs=/ca.pem&ssl_check_hostname=true",
    ],
)
def test_an_address_of_redis_that_works_is_kept_as_it_is(load, url):
    settings = load(REDIS_URL=url)
    assert (settings["REDIS_URL"], settings["AGENTSTATE_MIRROR_URL"]) == (url, url)
    assert load(AGENTSTATE_MIRROR_URL="redis://host?db=2&socket_timeout=5")["AGENTSTATE_MIRROR"]


def test_an_empty_value_counts_as_one_that_is_not_set(load, monkeypatch):
    source = "".join(
        (PROJECT / "agentstate" / name).read_text() for name in ("settings.py", "environment.py")
    )
    variables = set(re.findall(r'[a-z]\("([A-Z_]+)"', source)) - {"SECRET_KEY"}
    assert {"HTTPS", "DEBUG", "STATIC_ROOT", "ALLOWED_HOSTS", "AGENTSTATE_LEASE_SECONDS"} <= variables
    for name in variables:
        monkeypatch.delenv(name, raising=False)
    given = {name: value for name, value in load(SECRET_KEY="x").items() if name.isupper()}
    empty = load(SECRET_KEY="x", **dict.fromkeys(variables, ""))
    assert {name: empty[name] for name in given} == given


def test_a_number_that_is_not_set_is_none_or_its_default(load, monkeypatch):
    monkeypatch.delenv("AGENTSTATE_PROCESSES", raising=False)
    settings = load()
    assert (settings["AGENTSTATE_PROCESSES"], settings["TRUSTED_PROXIES"]) == (None, None)
    assert load(AGENTSTATE_PROCESSES="1")["AGENTSTATE_PROCESSES"] == 1


def test_times_are_set_by_the_environment(load):
    settings = load(AGENTSTATE_LEASE_SECONDS="1", AGENTSTATE_HEARTBEAT_SECONDS="0.4")
    assert (settings["AGENTSTATE_LEASE_SECONDS"], settings["AGENTSTATE_HEARTBEAT_SECONDS"]) == (1, 0.4)


@pytest.mark.parametrize("delay", ["", "0", "2.5"])
def test_the_demo_may_wait_for_no_time(load, delay):
    assert load(AGENTSTATE_DEMO_DELAY=delay)["AGENTSTATE_AGENTS"] == ["agentstate.demo.agents"]


def test_agent_modules_are_a_list_and_spaces_do_not_matter(load):
    assert load(AGENTSTATE_AGENTS="desk.agents, claims.agents,")["AGENTSTATE_AGENTS"] == [
        "desk.agents",
        "claims.agents",
    ]


def test_hosts_may_be_names_addresses_subdomains_or_all(load):
    hosts = ["desk.example.com", ".example.com", "192.0.2.1", "[2001:db8::1]", "desk_1", "*"]
    assert load(ALLOWED_HOSTS=", ".join(hosts))["ALLOWED_HOSTS"] == hosts


def test_origins_are_kept_as_browsers_send_them(load):
    origins = [
        "https://desk.example.com",
        "http://localhost:8080",
        "https://*.example.com",
        "https://[2001:db8::1]:8443",
    ]
    assert load(CSRF_TRUSTED_ORIGINS=", ".join(origins))["CSRF_TRUSTED_ORIGINS"] == origins
    assert load(CSRF_TRUSTED_ORIGINS="https://Desk.example.com")["CSRF_TRUSTED_ORIGINS"] == origins[:1]


def test_context_windows_are_set_for_all_agents_or_for_one(load):
    assert load()["AGENTSTATE_CONTEXT_WINDOW"] == {}
    windows = load(AGENTSTATE_CONTEXT_WINDOW="128000, claims=32000")["AGENTSTATE_CONTEXT_WINDOW"]
    assert windows == {"": 128_000, "claims": 32_000}


def test_what_is_hidden_is_set_by_names_and_by_one_pattern_in_each_line(load):
    settings = load(
        AGENTSTATE_MASK_KEYS="iban, card_number\r\npin\n", AGENTSTATE_MASK_PATTERNS="a{1,2}\n\n[b]"
    )
    assert settings["AGENTSTATE_MASK_KEYS"] == ["iban", "card_number", "pin"]
    assert settings["AGENTSTATE_MASK_PATTERNS"] == ["a{1,2}", "[b]"]


@pytest.mark.parametrize(
    "key",
    ["iban", "IBANNumber", "Konto-Nr.", "card number", "_pin_", "$iban", "straße", "İban", "電話", "x2"],
)
def test_a_name_that_hides_itself_may_be_set(load, key):
    assert load(AGENTSTATE_MASK_KEYS=key)["AGENTSTATE_MASK_KEYS"] == [key]


def test_sqlite_queues_its_writers_and_syncs_each_commit(load):
    options = load()["DATABASES"]["default"]["OPTIONS"]
    assert options["transaction_mode"] == "IMMEDIATE"
    assert "journal_mode=WAL" in options["init_command"]
    assert "synchronous=FULL" in options["init_command"]


def test_postgresql_ends_idle_transactions_and_waits_for_locks_no_longer_than_a_lease(load):
    load = partial(load, AGENTSTATE_LEASE_SECONDS="2.5", AGENTSTATE_HEARTBEAT_SECONDS="1")
    limits = "-c idle_in_transaction_session_timeout=2500 -c lock_timeout=2500"
    options = load(DATABASE_URL="postgres://host/name")["DATABASES"]["default"]["OPTIONS"]
    assert options["options"] == limits


def test_the_options_of_ones_own_for_postgresql_stay_and_take_precedence(load):
    url = "postgres://host/name?sslmode=require&options=-c%20lock_timeout%3D90s%20-c%20search_path%3Ddesk"
    options = load(DATABASE_URL=url)["DATABASES"]["default"]["OPTIONS"]
    assert options["sslmode"] == "require"
    limits, own = options["options"].split(" -c lock_timeout=12000 ")
    assert (limits, own) == (
        "-c idle_in_transaction_session_timeout=12000",
        "-c lock_timeout=90s -c search_path=desk",
    )
    options = load(DATABASE_URL="postgres://host/name", PGOPTIONS="-c work_mem=8MB")["DATABASES"]["default"]
    assert options["OPTIONS"]["options"].endswith(" -c lock_timeout=12000 -c work_mem=8MB")


def test_a_secret_key_is_made_once_and_only_its_owner_can_read_it(load, tmp_path):
    first = load()["SECRET_KEY"]
    assert len(first) > 50
    assert load()["SECRET_KEY"] == first
    assert stat.S_IMODE((tmp_path / ".secret_key").stat().st_mode) == 0o600
    assert load(SECRET_KEY="mine")["SECRET_KEY"] == "mine"


def test_processes_that_start_together_agree_on_the_secret_key(load, tmp_path):
    make = load(SECRET_KEY="x")["_secret_key"]
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(make, [tmp_path / "key"] * 32))
    assert len(keys) == 1
    assert [path.name for path in tmp_path.glob("key*")] == ["key"]


def test_a_secret_key_that_cannot_be_kept_is_asked_for(load, tmp_path):
    make = load(SECRET_KEY="x")["_secret_key"]
    with pytest.raises(ImproperlyConfigured, match="SECRET_KEY is not set"):
        make(tmp_path / "missing" / "key")


@pytest.mark.parametrize("left", [b"", b" \n", b"\0\0\0", b"\xff\xfe key"])
def test_a_secret_key_that_is_empty_or_damaged_is_refused_with_the_file_and_what_to_do(load, tmp_path, left):
    (tmp_path / ".secret_key").write_bytes(left)
    with pytest.raises(ImproperlyConfigured) as refused:
        load()
    assert str(refused.value) == (
        f"SECRET_KEY is not set, and {tmp_path / '.secret_key'} holds no key: it is empty or damaged. Set SECRET_KEY, "
        "restore the file, or delete it: then the next start makes a new key, and everyone has to sign in again."
    )
    assert (tmp_path / ".secret_key").read_bytes() == left
    assert load(SECRET_KEY="mine")["SECRET_KEY"] == "mine"


def test_a_new_secret_key_is_on_the_disk_before_others_can_read_it(load, tmp_path, monkeypatch):
    synced, sync, link = [], os.fsync, os.link

    def noted(descriptor):
        synced.append(os.fstat(descriptor))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)

    def link_what_is_synced(draft, file):
        assert [(stat.st_ino, stat.st_size > 50) for stat in synced] == [(os.stat(draft).st_ino, True)]
        link(draft, file)

    monkeypatch.setattr(os, "link", link_what_is_synced)
    load()
    assert synced


def test_outside_development_everything_insists_on_tls(load):
    settings = load()
    assert settings["SECURE_SSL_REDIRECT"]
    assert settings["SESSION_COOKIE_SECURE"]
    assert not load(HTTPS="false")["SECURE_SSL_REDIRECT"]
    assert not load(DEBUG="true")["SECURE_SSL_REDIRECT"]


def test_who_says_that_a_request_came_over_tls_is_believed_only_where_a_proxy_is_trusted(load):
    header = "SECURE_PROXY_SSL_HEADER"
    assert header not in load()
    assert header not in load(HTTPS="true")
    assert header not in load(HTTPS="true", TRUSTED_PROXIES="0")
    assert load(HTTPS="true", TRUSTED_PROXIES="1")[header] == ("HTTP_X_FORWARDED_PROTO", "https")


@pytest.mark.parametrize(
    "redirect, https, proxies, code",
    [
        (True, True, None, "agentstate.W002"),
        (True, None, None, "agentstate.I001"),
        (True, True, 0, ""),
        (True, True, 1, ""),
        (False, False, None, ""),
    ],
)
def test_the_deployment_check_asks_for_the_proxies_where_it_matters(settings, redirect, https, proxies, code):
    settings.SECURE_SSL_REDIRECT, settings.HTTPS, settings.TRUSTED_PROXIES = redirect, https, proxies
    assert [message.id for message in proxies_are_known(None)] == ([code] if code else [])


def test_scripts_and_styles_come_from_this_site_only(load):
    directives = load()["CONTENT_SECURITY_POLICY"]["DIRECTIVES"]
    assert directives["default-src"] == ["'self'"]
    assert not any("unsafe" in source for sources in directives.values() for source in sources)


@pytest.mark.slow
def test_deployment_checks_find_nothing_once_the_static_files_are_collected(tmp_path):
    secret = "a secret of more than fifty characters, as deployment checks want it"
    env = environment(SECRET_KEY=secret, STATIC_ROOT=str(tmp_path / "static"))
    check = (*MANAGE, "check", "--deploy", "--fail-level", "WARNING")
    before = run(check, env)
    assert before.returncode == 1
    assert "(agentstate.W006)" in before.stderr
    assert "(agentstate.W006)" not in run(check, env | {"DEBUG": "true"}).stderr
    assert run((*MANAGE, "collectstatic", "--noinput"), env).returncode == 0
    done = run(check, env)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "manifest", ["", "{}", '{"version": "1.1", "paths": {"of-an-earlier-version.css": "x"}}']
)
def test_the_deployment_check_says_where_files_of_the_pages_are_not_collected(settings, tmp_path, manifest):
    settings.STORAGES = {
        "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"}
    }
    settings.STATIC_ROOT = tmp_path
    (tmp_path / "staticfiles.json").write_text(manifest)
    (warning,) = static_files_are_collected(None)
    assert "collectstatic" in str(warning.hint)
    assert "in STATIC_ROOT cannot be read" in warning.msg or "lacks files of the pages" in warning.msg
    settings.DEBUG = True
    assert static_files_are_collected(None) == []


@pytest.mark.slow
@pytest.mark.parametrize("command", ["worker", "beat"])
def test_celery_refuses_a_broker_that_no_other_process_can_reach(command):
    done = run((*CELERY, command), environment())
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("REDIS_URL is not set")


@pytest.mark.slow
def test_a_web_process_needs_no_haystack():
    code = "import sys, agentstate.wsgi; sys.exit('haystack' in sys.modules)"
    assert run((*MANAGE[:1], "-c", code), environment()).returncode == 0


def test_development_and_run_time_pin_the_same_versions():
    def pins(name):
        lines = (PROJECT / "requirements" / name).read_text().splitlines()
        return {line.rstrip(" \\") for line in lines if "==" in line}

    assert pins("run.txt") <= pins("dev.txt")


def test_no_lock_names_a_package_index():
    for lock in Path(PROJECT / "requirements").iterdir():
        assert "://" not in lock.read_text()
