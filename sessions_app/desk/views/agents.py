"""The agents that can be started, and the workers that run them."""

from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_GET

from agentstate.names import CHANGED_TEXT
from sessions_app.desk.context import Request, page_context, render_page, staff_page, wants_part
from sessions_app.desk.pages import agents, workers
from sessions_app.desk.pages.session import diagram
from sessions_app.desk.pages.session.breakpoints import breakpoints_of_agent
from sessions_app.finding import search_masking
from sessions_app.models import RegisteredAgent


@staff_page
@require_GET
def agents_page(request: Request) -> HttpResponse:
    context = page_context(request)
    rows = agents.agents(context.mask)
    values = {"agents": rows, "is_worker_online": not rows and workers.is_one_online(context.now)}
    return render_page(request, "desk/agents.html", values)


@staff_page
@require_GET
def agent_page(request: Request, key: str) -> HttpResponse:
    """One agent: its tools with policies and schemas, and the phases of its newest sessions together."""
    context = page_context(request)
    mask = context.mask
    agent = mask.row(get_object_or_404(RegisteredAgent, key=key))
    summed = agents.totals(agent)
    values = {
        "agent": agent,
        "why_not": context.why_not,
        "summed": summed,
        "breakpoints": breakpoints_of_agent(agent),
        "lossy": agents.lossy_results(key),
        "changed_text": CHANGED_TEXT,
        "definitions": agents.definitions(key, mask),
        "diagram": diagram.of_totals(summed.totals, label="All sessions together"),
    }
    return render_page(request, "desk/agent.html", values)


@staff_page
@require_GET
def workers_page(request: Request) -> HttpResponse:
    rows = workers.workers(page_context(request))
    values = {
        "workers": rows,
        "no_agents": any(row.without_agents for row in rows),
        "search_outdated": search_masking.outdated(),
    }
    template = "desk/workers.html#list" if wants_part(request) else "desk/workers.html"
    return render_page(request, template, values)
