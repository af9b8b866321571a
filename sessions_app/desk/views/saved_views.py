"""Lists of sessions kept under a name."""

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from sessions_app import actions
from sessions_app.access.errors import ActionError
from sessions_app.access.roles import Actor
from sessions_app.actions.saved import may_delete
from sessions_app.desk.context import Request, desk, page, wants_part
from sessions_app.desk.forms.lists import ViewForm
from sessions_app.desk.views.bulk import told
from sessions_app.finding.saved_views import views_for


@desk
@require_GET
def views(request: Request) -> HttpResponse:
    """All views that one can open, with what can be done about them."""
    own, others = views_for(request.user)
    found = [(view, told(view.query), may_delete(request.user, view)) for view in [*own, *others]]
    return page(request, "desk/saved_views.html", {"found": found})


@desk
@require_http_methods(["GET", "POST"])
def save(request: Request) -> HttpResponse:
    """Keep the list that the query string describes."""
    status = 200
    form = ViewForm(
        request.POST if request.method == "POST" else None, initial={"query": request.GET.urlencode()}
    )
    if request.method == "POST":
        status = 400
        if form.is_valid():
            try:
                view = form.run(Actor.of(request.user))
            except ActionError as error:
                form.add_error(None, str(error))
                status = error.status
            else:
                messages.success(request, f"Saved as “{view.name}”.")
                return redirect(f"{reverse('desk')}?{view.query}")
    part = wants_part(request) and request.method == "GET"
    return page(
        request, "desk/save_view.html#sheet" if part else "desk/save_view.html", {"form": form}, status=status
    )


@desk
@require_POST
def delete(request: Request, view_id: int) -> HttpResponse:
    try:
        actions.delete_view(actor=Actor.of(request.user), view_id=view_id)
    except ActionError as error:
        context = {"title": "It was not deleted", "text": str(error)}
        return page(request, "desk/problem.html", context, status=error.status)
    messages.success(request, "Deleted.")
    return redirect("views")
