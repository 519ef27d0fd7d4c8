from __future__ import annotations

import os

from django.core.wsgi import get_wsgi_application

from jimsite.bodies import bounded_wsgi

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "jimsite.settings")
application = bounded_wsgi(get_wsgi_application())
