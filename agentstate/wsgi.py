"""The WSGI entry point, for any WSGI server."""

import os

from django.core.wsgi import get_wsgi_application

from agentstate.preload import preload

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentstate.settings")

application = get_wsgi_application()
preload()
