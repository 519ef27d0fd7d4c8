"""The Django settings of JIM. Operators change them with environment variables, such as JIM_PORT."""

from __future__ import annotations

from pathlib import Path

from api import about
from jimsite import environment
from jimsite.logs import logging_config

BASE_DIR = Path(__file__).resolve().parent.parent

JIM_DATA_DIR = environment.folder(
    "JIM_DATA_DIR",
    BASE_DIR / "data",
    about="Folder for the data that must survive an upgrade: database, keys, worker locks.",
)

# Other intervals are fractions of the lease, so this number balances fast recovery against tolerance of
# pauses.
JIM_LEASE_SECONDS = environment.seconds(
    "JIM_LEASE_SECONDS",
    60,
    least=0.5,
    about="How long a worker can go without a heartbeat before its tasks are given to other workers.",
)
JIM_POLL_SECONDS = environment.seconds(
    "JIM_POLL_SECONDS",
    2,
    least=0.01,
    about="How often idle workers and schedulers check for work if they receive no notification.",
)
JIM_GRACE_SECONDS = environment.seconds(
    "JIM_GRACE_SECONDS",
    30,
    least=0,
    about="How long running steps can continue after a worker is told to stop.",
)
JIM_KILL_SECONDS = environment.seconds(
    "JIM_KILL_SECONDS",
    1,
    least=0,
    about="Time between the signals TERM and KILL when the process of a step is stopped.",
)

JIM_OUTPUT_BYTES = environment.whole(
    "JIM_OUTPUT_BYTES",
    1_048_576,
    least=1,
    most=1_073_741_824,
    about="Maximum size of the output that is stored for each attempt, in bytes.",
)
JIM_OUTPUT_LINES = environment.whole(
    "JIM_OUTPUT_LINES",
    10_000,
    least=1,
    most=10_000_000,
    about="Maximum number of output lines that are stored for each attempt.",
)

JIM_BUFFER_LIMIT = environment.whole(
    "JIM_BUFFER_LIMIT",
    1_000,
    least=2,
    most=4_000,
    about="How many occurrences of a schedule can be pending. If there are more, the oldest automatic ones "
    "are dropped.",
)
JIM_MINIMUM_INTERVAL_SECONDS = environment.whole(
    "JIM_MINIMUM_INTERVAL_SECONDS",
    1,
    least=1,
    most=86_400,
    about="Shortest allowed time between two runs of a schedule.",
)
JIM_BACKFILL_SLICE = environment.whole(
    "JIM_BACKFILL_SLICE", 100, least=1, most=1_000, about="How many occurrences a backfill adds at once."
)
JIM_OVERDUE_SECONDS = environment.seconds(
    "JIM_OVERDUE_SECONDS",
    60,
    least=1,
    about="How late a schedule can be before it is shown as overdue.",
)

JIM_CONCURRENCY_POLICY = environment.text(
    "JIM_CONCURRENCY_POLICY",
    "execution.queue.concurrency.AllKeys",
    about="Dotted path of a class whose method keys(line) returns the keys of all limits that a task counts "
    "for. The line is the task's step or job, as a dict.",
)

JIM_WAKE_LEAST_SECONDS = environment.seconds(
    "JIM_WAKE_LEAST_SECONDS",
    30,
    least=0.01,
    about="Shortest delay that a workflow's consumer can set with wake_at.",
)
JIM_WAKE_MOST_SECONDS = environment.seconds(
    "JIM_WAKE_MOST_SECONDS",
    86_400,
    least=1,
    about="Longest delay that a workflow's consumer can set with wake_at.",
)
JIM_WORKFLOW_FIXER = environment.text(
    "JIM_WORKFLOW_FIXER",
    "",
    about="Dotted path of a function that is called when a workflow run fails with a logic error, with this "
    "run as its argument. If the function returns True, the run is retried at once, with the code that the "
    "workers have loaded. If the path is empty, no function is called.",
)

JIM_EXECUTABLE_FOLDERS = environment.folders(
    "JIM_EXECUTABLE_FOLDERS",
    [BASE_DIR / "scripts", JIM_DATA_DIR / "scripts"],
    about="Folders from which “executable” and “powershell” steps may start programs and scripts.",
)
JIM_PWSH = environment.text(
    "JIM_PWSH", "pwsh", about="Path to PowerShell 7, if “pwsh” is not in a standard folder such as /usr/bin."
)

JIM_HTTP_ALLOW = environment.places(
    "JIM_HTTP_ALLOW",
    about="Hosts, addresses or networks (comma-separated) that “http” steps, webhooks and the heartbeat may "
    "call besides public addresses, such as 10.0.0.0/8,intranet.example.",
)
JIM_HTTP_PORTS = environment.ports(
    "JIM_HTTP_PORTS",
    about="Ports that outgoing HTTP requests can use (comma-separated). If empty, all ports are allowed.",
)
JIM_HTTP_BYTES = environment.whole(
    "JIM_HTTP_BYTES",
    10_485_760,
    least=1,
    most=1_073_741_824,
    about="Largest response to an outgoing HTTP request, in bytes. If a response is larger, the request "
    "fails.",
)

JIM_HEARTBEAT_URL = environment.address(
    "JIM_HEARTBEAT_URL",
    about="URL of a monitoring service, to which the scheduler regularly sends a GET request. If empty, "
    "no requests are sent.",
)
JIM_HEARTBEAT_SECONDS = environment.seconds(
    "JIM_HEARTBEAT_SECONDS", 60, least=1, about="How often the scheduler calls the heartbeat URL."
)

# {"hr": "postgresql://user:password@host:5432/name", "local": "sqlite:////path/to/file"}. The file holds
# passwords, so only its owner may read it (mode 600).
JIM_SQL_CONNECTIONS = environment.sql_connections(
    "JIM_SQL_CONNECTIONS",
    data_dir=JIM_DATA_DIR,
    about="Databases for “sql” steps: a JSON object of names and URLs. If empty, the file "
    "sql_connections.json in the data folder is used.",
)
JIM_SQL_FOLDERS = environment.folders(
    "JIM_SQL_FOLDERS",
    [JIM_DATA_DIR / "sql"],
    about="Folders from which “sql” steps may read script files.",
)

JIM_IDENTITY_FOLDERS = environment.folders(
    "JIM_IDENTITY_FOLDERS",
    [JIM_DATA_DIR / "identity"],
    about="Folders in which connected systems may read and write files.",
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
    about="Port on which “manage.py up” serves the pages. Cookie names contain this port.",
)

JIM_SECRETS_KEYS = environment.secrets_keys(
    "JIM_SECRETS_KEYS",
    about="Keys that encrypt secrets, newest first (comma-separated). Hosts with separate data folders must "
    "have the same keys.",
)

DEBUG = environment.flag(
    "JIM_DEBUG", about="Show tracebacks in the browser. Do not use this on a public host."
)
DEFAULT_EXCEPTION_REPORTER_FILTER = "jimsite.error_pages.DiscreetReports"
SECRET_KEY = environment.secret_key(
    data_dir=JIM_DATA_DIR, about="Key that signs sessions. It must be the same on all hosts."
)
ALLOWED_HOSTS = environment.words(
    "JIM_ALLOWED_HOSTS",
    ["127.0.0.1", "localhost", "[::1]"],
    about="Host names by which JIM can be reached (comma-separated).",
)
CSRF_TRUSTED_ORIGINS = environment.words(
    "JIM_TRUSTED_ORIGINS",
    [],
    about="Origins from which forms are accepted behind a proxy (comma-separated), such as https://jim.example.",
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
    "identity",
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
    "jimsite.error_pages.DatabaseAway",
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
            "JIM_DATABASE_POOL", about="Use a pool of PostgreSQL connections in web processes."
        ),
        about="URL of the database: postgresql://user:password@host/name. Required to use several hosts.",
    ),
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# Clients can set X-Forwarded-For, so only entries of known proxies count as the address of a client.
JIM_PROXIES = environment.whole(
    "JIM_PROXIES",
    0,
    least=0,
    most=10,
    about="Number of proxies in front of JIM that add to X-Forwarded-For. If 0, the header is ignored.",
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

# Secure cookies only with JIM_HTTPS=1: without TLS, browsers would not send them to http://127.0.0.1.
JIM_HTTPS = environment.flag(
    "JIM_HTTPS",
    about="Whether JIM is behind a TLS proxy that sets X-Forwarded-Proto. Cookies are then secure, and "
    "requests without TLS are redirected.",
)
JIM_HSTS_SECONDS = environment.whole(
    "JIM_HSTS_SECONDS",
    31_536_000,
    least=0,
    most=63_072_000,
    about="With JIM_HTTPS, how long browsers must use TLS for this host (HSTS). If 0, the header is "
    "not sent.",
)
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = JIM_HTTPS
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if JIM_HTTPS else None
SECURE_HSTS_SECONDS = JIM_HSTS_SECONDS if JIM_HTTPS else 0
# Probes and scrapers call the process directly, not through the proxy.
SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^api/v1/health/", r"^metrics$"]
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CONTENT_TYPE_NOSNIFF = True
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
X_FRAME_OPTIONS = "DENY"
# Cookies ignore ports, so instances on one host need different names.
SESSION_COOKIE_NAME = f"jim_session_{JIM_PORT}"
CSRF_COOKIE_NAME = f"jim_csrf_{JIM_PORT}"

# Identifies browsers that have signed in before, to tell them from those that guess passwords.
BROWSER_COOKIE_NAME = f"jim_browser_{JIM_PORT}"

# A schedule's form has a dozen fields for each of up to 500 steps.
DATA_UPLOAD_MAX_NUMBER_FIELDS = 10_000

AUTHENTICATION_BACKENDS = ["jimsite.authentication.Backend"]
LOGIN_URL, LOGIN_REDIRECT_URL = "web:login", "web:home"
CSRF_FAILURE_VIEW = "jimsite.error_pages.csrf_failed"

JIM_API_PER_MINUTE = environment.whole(
    "JIM_API_PER_MINUTE",
    1_200,
    least=1,
    most=1_000_000,
    about="API calls allowed per minute for each token or browser session. All of a user's tokens combined "
    "are limited to four times this number.",
)
CALLS_PER_MINUTE = {"stranger": 60, "principal": JIM_API_PER_MINUTE, "user": 4 * JIM_API_PER_MINUTE}
JIM_METRICS_OPEN = environment.flag(
    "JIM_METRICS_OPEN",
    about="Serve /metrics without authentication; otherwise, a token with the scope “view” is required.",
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
        "WorkflowStatus": "workflows.words.SHOWN_STATUSES",
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
# Static files are served from the packages, so collectstatic is not needed.
WHITENOISE_USE_FINDERS = True

LOGGING = logging_config(
    json=environment.flag("JIM_LOG_JSON", about="Write logs as one JSON object per line."),
    level=environment.choice(
        "JIM_LOG_LEVEL",
        "INFO",
        among=["DEBUG", "INFO", "WARNING", "ERROR"],
        about="Lowest level that is logged.",
    ),
)

# Shown on the settings page.
JIM_CONFIGURATION = tuple(environment.known.values())
