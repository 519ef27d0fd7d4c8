from __future__ import annotations

import os
import warnings

from django.core.asgi import get_asgi_application

from jimsite.bodies import bounded_asgi

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "jimsite.settings")
os.environ.setdefault("JIM_DATABASE_POOL", "1")
# WhiteNoise serves static files with synchronous iterators, which do no harm: the files are few and small.
warnings.filterwarnings("ignore", message="StreamingHttpResponse must consume synchronous iterators")
application = bounded_asgi(get_asgi_application())
