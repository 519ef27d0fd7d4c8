"""Every JIM_… setting can be given as an environment variable of the same name."""

from __future__ import annotations

from pathlib import Path

from api import about
from jimsite import environment
from jimsite.logs import logging_config

BASE_DIR = Path(__file__).resolve().parent.parent

JIM_DATA_DIR = environment.folder(
    "JIM_DATA_DIR",
    BASE_DIR / "data",
    about="What belongs to this installation and must outlive an upgrade: database, keys, worker locks.",
)

# Every other interval of the engine is a fraction of it, so this one number trades speed of recovery for
# tolerance of pauses.
JIM_LEASE_SECONDS = environment.seconds(
    "JIM_LEASE_SECONDS",
    60,
    least=0.5,
    about="How long a worker may be silent before its tasks are given to others.",
)
JIM_POLL_SECONDS = environment.seconds(
    "JIM_POLL_SECONDS",
    2,
    least=0.01,
    about="How often idle loops look for work that no notification announced.",
)
JIM_GRACE_SECONDS = environment.seconds(
    "JIM_GRACE_SECONDS", 30, least=0, about="How long running steps may go on after a stop was asked for."
)
JIM_KILL_SECONDS = environment.seconds(
    "JIM_KILL_SECONDS", 1, least=0, about="How long a process may take to end between TERM and KILL."
)

JIM_OUTPUT_BYTES = environment.whole(
    "JIM_OUTPUT_BYTES",
    1_048_576,
    least=1,
    most=1_073_741_824,
    about="How much is kept of one attempt's output, in bytes.",
)
JIM_OUTPUT_LINES = environment.whole(
    "JIM_OUTPUT_LINES",
    10_000,
    least=1,
    most=10_000_000,
    about="How much is kept of one attempt's output, in lines; whichever is reached first.",
)

JIM_BUFFER_LIMIT = environment.whole(
    "JIM_BUFFER_LIMIT",
    1_000,
    least=2,
    most=4_000,
    about="How many occurrences of one schedule may wait; then the oldest automatic ones are dropped.",
)
JIM_MINIMUM_INTERVAL_SECONDS = environment.whole(
    "JIM_MINIMUM_INTERVAL_SECONDS",
    1,
    least=1,
    most=86_400,
    about="How close together the times of a schedule may be.",
)
JIM_BACKFILL_SLICE = environment.whole(
    "JIM_BACKFILL_SLICE", 100, least=1, most=1_000, about="How many times a backfill adds at once."
)
JIM_OVERDUE_SECONDS = environment.seconds(
    "JIM_OVERDUE_SECONDS",
    60,
    least=1,
    about="How long after its time a schedule without an occurrence is shown as overdue.",
)

JIM_CONCURRENCY_POLICY = environment.text(
    "JIM_CONCURRENCY_POLICY",
    "execution.queue.concurrency.AllKeys",
    about="Which limits a task counts for: the dotted path of a class with a method keys(line).",
)

JIM_WAKE_LEAST_SECONDS = environment.seconds(
    "JIM_WAKE_LEAST_SECONDS", 30, least=0.01, about="How soon a consumer may ask to be woken."
)
JIM_WAKE_MOST_SECONDS = environment.seconds(
    "JIM_WAKE_MOST_SECONDS", 86_400, least=1, about="How late it may: then it looks again in any case."
)
JIM_WORKFLOW_FIXER = environment.text(
    "JIM_WORKFLOW_FIXER",
    "",
    about="What is asked when the logic of a handler fails: the dotted path of a function that gets the run, "
    "and returns whether to try again now, with the code that workers have loaded. None if empty.",
)

JIM_EXECUTABLE_FOLDERS = environment.folders(
    "JIM_EXECUTABLE_FOLDERS",
    [BASE_DIR / "scripts", JIM_DATA_DIR / "scripts"],
    about="The only folders that “executable” and “powershell” steps may start programs and scripts from.",
)
JIM_PWSH = environment.text(
    "JIM_PWSH", "pwsh", about="Where PowerShell 7 is, if not in the usual folders under the name pwsh."
)

JIM_HTTP_ALLOW = environment.places(
    "JIM_HTTP_ALLOW",
    about="What “http” steps, webhooks and the heartbeat may call besides public addresses: hosts, addresses "
    "or networks (comma-separated), such as 10.0.0.0/8,intranet.example.",
)
JIM_HTTP_PORTS = environment.ports(
    "JIM_HTTP_PORTS",
    about="The only ports that they may call (comma-separated); all of them if there are none here.",
)
JIM_HTTP_BYTES = environment.whole(
    "JIM_HTTP_BYTES",
    10_485_760,
    least=1,
    most=1_073_741_824,
    about="How much of an answer they read; more is a failure.",
)

JIM_HEARTBEAT_URL = environment.address(
    "JIM_HEARTBEAT_URL",
    about="A monitor outside that the scheduler calls (GET) every so often while it ticks; none if empty.",
)
JIM_HEARTBEAT_SECONDS = environment.seconds(
    "JIM_HEARTBEAT_SECONDS", 60, least=1, about="How often it is called."
)

# {"hr": "postgresql://user:password@host:5432/name", "local": "sqlite:////path/to/file"}. As the file holds
# passwords, nobody else should be able to read it (mode 600).
JIM_SQL_CONNECTIONS = environment.sql_connections(
    "JIM_SQL_CONNECTIONS",
    data_dir=JIM_DATA_DIR,
    about="The databases that “sql” steps may name, a JSON object of names and URLs. Without it, the file "
    "sql_connections.json in the data folder is read.",
)
JIM_SQL_FOLDERS = environment.folders(
    "JIM_SQL_FOLDERS",
    [JIM_DATA_DIR / "sql"],
    about="The only folders that “sql” steps may read script files from.",
)

JIM_RETENTION_DAYS = environment.whole(
    "JIM_RETENTION_DAYS", 90, least=1, most=36_500, about="How long executions and their activities are kept."
)
JIM_AUDIT_DAYS = environment.whole(
    "JIM_AUDIT_DAYS",
    3_650,
    least=1,
    most=36_500,
    about="How long the records of administrative changes are kept.",
)

JIM_PORT = environment.whole(
    "JIM_PORT",
    8_000,
    least=1,
    most=65_535,
    about="Where “manage.py up” serves these pages; cookies carry it in their names.",
)

JIM_SECRETS_KEYS = environment.secrets_keys(
    "JIM_SECRETS_KEYS",
    about="The keys that secrets are encrypted with, the newest first (comma-separated). Hosts that have "
    "data folders of their own must share them here.",
)

DEBUG = environment.flag(
    "JIM_DEBUG", about="Shows tracebacks in the browser. Never where others can reach it."
)
DEFAULT_EXCEPTION_REPORTER_FILTER = "jimsite.mishaps.DiscreetReports"
SECRET_KEY = environment.secret_key(data_dir=JIM_DATA_DIR, about="Signs sessions; the same on all hosts.")
ALLOWED_HOSTS = environment.words(
    "JIM_ALLOWED_HOSTS",
    ["127.0.0.1", "localhost", "[::1]"],
    about="The names under which JIM may be called: a public one has to be allowed on purpose "
    "(comma-separated).",
)
CSRF_TRUSTED_ORIGINS = environment.words(
    "JIM_TRUSTED_ORIGINS",
    [],
    about="Origins whose forms are accepted, such as https://jim.example, behind a proxy (comma-separated).",
)

INSTALLED_APPS = [
    "jimsite.apps.JimAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "django_filters",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_htmx",
    "activities",
    "schedules",
    "execution",
    "webhooks",
    "workflows",
    "api",
    "web",
    "jimsite.apps.JimsiteConfig",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "jimsite.headers.content_security_policy",
    "jimsite.headers.not_stored",
    "jimsite.mishaps.DatabaseAway",
]

ROOT_URLCONF = "jimsite.urls"
ASGI_APPLICATION = "jimsite.asgi.application"
WSGI_APPLICATION = "jimsite.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "web.navigation.navigation",
            ],
        },
    },
]

DATABASES = {
    "default": environment.database(
        data_dir=JIM_DATA_DIR,
        pooled=environment.flag(
            "JIM_DATABASE_POOL", about="Whether web processes share a pool of connections to PostgreSQL."
        ),
        about="Where everything is kept: postgresql://user:password@host/name; several hosts need it.",
    ),
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# Whoever can write X-Forwarded-For would choose the address that their guesses are counted for.
JIM_PROXIES = environment.whole(
    "JIM_PROXIES",
    0,
    least=0,
    most=10,
    about="How many proxies in front of JIM add to X-Forwarded-For. With 0, that header is ignored.",
)

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{validator}"}
    for validator in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
] + [{"NAME": "api.passwords.RevokesTokens"}]

# Behind TLS (JIM_HTTPS=1) nothing travels in the clear; without it, a secure cookie would lock everybody
# out of http://127.0.0.1.
JIM_HTTPS = environment.flag(
    "JIM_HTTPS",
    about="JIM is behind TLS: cookies never travel in the clear, and what is asked for without TLS is "
    "redirected. The proxy has to say X-Forwarded-Proto.",
)
JIM_HSTS_SECONDS = environment.whole(
    "JIM_HSTS_SECONDS",
    31_536_000,
    least=0,
    most=63_072_000,
    about="With JIM_HTTPS, how long browsers use nothing but TLS for this host (HSTS); 0: they are not told.",
)
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = JIM_HTTPS
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if JIM_HTTPS else None
SECURE_HSTS_SECONDS = JIM_HSTS_SECONDS if JIM_HTTPS else 0
# Probes and scrapers ask the process itself, not the proxy.
SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^api/v1/health/", r"^metrics$"]
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CONTENT_TYPE_NOSNIFF = True
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
X_FRAME_OPTIONS = "DENY"
# Cookies know no ports: instances side by side on one host would log each other out.
SESSION_COOKIE_NAME = f"jim_session_{JIM_PORT}"
CSRF_COOKIE_NAME = f"jim_csrf_{JIM_PORT}"

# Tells browsers that have signed in before from those that guess.
BROWSER_COOKIE_NAME = f"jim_browser_{JIM_PORT}"

# A schedule's form has a dozen fields for each of up to 500 steps.
DATA_UPLOAD_MAX_NUMBER_FIELDS = 10_000

AUTHENTICATION_BACKENDS = ["jimsite.authentication.Backend"]
LOGIN_URL, LOGIN_REDIRECT_URL = "web:login", "web:home"
CSRF_FAILURE_VIEW = "jimsite.mishaps.csrf_failed"

JIM_API_PER_MINUTE = environment.whole(
    "JIM_API_PER_MINUTE",
    1_200,
    least=1,
    most=1_000_000,
    about="How often a minute one token, or a browser, may call the API; all tokens of a user together four "
    "times as often.",
)
CALLS_PER_MINUTE = {"stranger": 60, "principal": JIM_API_PER_MINUTE, "user": 4 * JIM_API_PER_MINUTE}
JIM_METRICS_OPEN = environment.flag(
    "JIM_METRICS_OPEN", about="Whether /metrics answers everybody; else it takes a token that may view."
)
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "api.authentication.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["api.permissions.Allowed"],
    "DEFAULT_PARSER_CLASSES": ["api.reading.StrictJSONParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PAGINATION_CLASS": "api.paging.KeysetPages",
    "DEFAULT_FILTER_BACKENDS": ["api.filtering.FilterBackend"],
    "DEFAULT_THROTTLE_CLASSES": [
        "api.throttling.PrincipalThrottle",
        "api.throttling.UserThrottle",
    ],
    "DEFAULT_SCHEMA_CLASS": "api.schema.Schema",
    "EXCEPTION_HANDLER": "api.errors.explain",
    "URL_FORMAT_OVERRIDE": None,
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "JIM",
    "DESCRIPTION": about.DESCRIPTION,
    "TAGS": [{"name": name, "description": text} for name, text in about.TAGS.items()],
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["rest_framework.permissions.IsAuthenticated"],
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "COMPONENT_SPLIT_REQUEST": True,
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
    "ENUM_NAME_OVERRIDES": {
        "ScheduleStatus": "schedules.models.Schedule.Status",
        "OccurrenceStatus": "schedules.models.Occurrence.Status",
        "BackfillStatus": "schedules.models.Backfill.Status",
        "TemplateStatus": "schedules.models.TaskTemplate.Status",
        "ActivityStatus": "activities.models.Activity.Status",
        "ItemOutcome": "activities.models.ActivityItem.Outcome",
        "WorkerStatus": "execution.models.Worker.Status",
        "ExecutionState": "api.resources.executions.STATES",
        "WebhookStatus": "webhooks.models.Endpoint.Status",
        "DeliveryStatus": "webhooks.models.Delivery.Status",
        "TokenState": "api.resources.tokens.STATES",
        "WorkflowStatus": "api.resources.workflows.SHOWN",
        "RunStatus": "api.resources.workflows.STATUSES",
        "RunPhase": "api.resources.workflows.PHASE_NAMES",
        "EventStatus": "workflows.models.Event.Status",
        "HandlerKind": "workflows.models.Handler.Kind",
    },
}

LANGUAGE_CODE = "en-gb"
USE_I18N = True
USE_TZ = True
TIME_ZONE = "UTC"

STATIC_URL = "static/"
STATICFILES_DIRS = [path for path in [BASE_DIR / "static"] if path.is_dir()]
# Served straight from the packages: nothing to collect before the first start or after an upgrade.
WHITENOISE_USE_FINDERS = True

LOGGING = logging_config(
    json=environment.flag("JIM_LOG_JSON", about="Logs for machines, one JSON object per line."),
    level=environment.choice(
        "JIM_LOG_LEVEL", "INFO", among=["DEBUG", "INFO", "WARNING", "ERROR"], about="How much is logged."
    ),
)

# What the page of the settings shows.
JIM_CONFIGURATION = tuple(environment.known.values())
