"""Where a toast waits for the next page: in a cookie that counts for the login it was made for only.

The browser may have another user by then: a redirect that a script was sent need not be followed, and the login may
have ended meanwhile. A cookie costs no query, and a page without it neither.
"""

from typing import Any

from django.contrib.messages.storage.base import Message
from django.contrib.messages.storage.cookie import CookieStorage
from django.core.signing import get_cookie_signer
from django.http import HttpRequest
from django.http.response import HttpResponseBase


class ToastStorage(CookieStorage):
    """The setting MESSAGE_STORAGE. Nobody who is not logged in has a toast; the end of a login removes its cookie."""

    request: HttpRequest

    def update(self, response: HttpResponseBase) -> list[Message] | None:
        if self.cookie_name in self.request.COOKIES and not self.request.session.session_key:
            self.used = True  # so that it is removed: this request has logged out, or there never was a login
        return super().update(response)

    # What follows is called by Django's base class, and is not in the stubs.

    def _get(self, *args: Any, **kwargs: Any) -> Any:
        if not self.request.user.is_authenticated:
            return [], True
        self._sign_for_login()
        return super()._get(*args, **kwargs)  # type: ignore[misc]

    def _store(self, messages: list[Message], *args: Any, **kwargs: Any) -> Any:
        if messages and not self.request.user.is_authenticated:
            messages = []
        self._sign_for_login()
        return super()._store(messages, *args, **kwargs)  # type: ignore[misc]

    def _sign_for_login(self) -> None:
        """Each time anew: a request may change the key of its login, as one that sets a new password does."""
        self.signer = get_cookie_signer(salt=f"{self.key_salt}:{self.request.session.session_key}")
