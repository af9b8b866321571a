"""The page for a request that Django refuses before a view sees it."""

from django.conf import settings
from django.core.exceptions import RequestDataTooBig, TooManyFilesSent
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.defaultfilters import filesizeformat


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """The project's ``handler400``: says what to change where that is known, and nothing of what was sent."""
    status, title, text = 400, "Bad request", "This request could not be read. Nothing was changed."
    if isinstance(exception, TooManyFilesSent):
        title, text = "No files", "Files cannot be uploaded here. Nothing was changed. Send text instead."
    elif isinstance(exception, RequestDataTooBig):
        limit = filesizeformat(settings.DATA_UPLOAD_MAX_MEMORY_SIZE)
        status, title = 413, "Too large"
        text = f"At most {limit} can be sent at once, so nothing was changed. Go back and send less."
    return render(request, "400.html", {"title": title, "text": text}, status=status)
