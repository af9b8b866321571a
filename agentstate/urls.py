"""The project's URLs: signing in, the admin, and the desk at the root."""

from django.contrib import admin
from django.contrib.auth.views import LoginView, LogoutView
from django.urls import include, path

from sessions_app.desk.login import password_change

# Its pages have a link to the desk instead, see templates/admin/base_site.html.
admin.site.site_url = None

handler400 = "sessions_app.desk.bad_request.bad_request"

urlpatterns = [
    path("login/", LoginView.as_view(redirect_authenticated_user=True), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("admin/password_change/", admin.site.admin_view(password_change)),
    path("admin/", admin.site.urls),
    path("", include("sessions_app.desk.urls")),
]
