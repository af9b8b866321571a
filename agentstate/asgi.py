"""The ASGI entry point, for any ASGI server."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentstate.settings")

application = get_asgi_application()
