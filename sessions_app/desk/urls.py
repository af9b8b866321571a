"""The desk's addresses. Everything that can be seen has one, and everything that can be done."""

from django.urls import path

from sessions_app.desk.views import bulk, dialogs, lists, overview, saved_views, search, session, tabs

urlpatterns = [
    path("", lists.sessions, name="desk"),
    path("start/", dialogs.start, name="start"),
    path("keys/", dialogs.keys, name="keys"),
    path("approvals/", overview.approvals, name="approvals"),
    path("approvals/batch/", overview.decide_batch, name="decide-batch"),
    path("agents/", overview.agents, name="agents"),
    path("agents/<str:key>/", overview.agent, name="agent"),
    path("workers/", overview.workers, name="workers"),
    path("compare/", overview.compare, name="compare"),
    path("views/", saved_views.views, name="views"),
    path("views/save/", saved_views.save, name="save_view"),
    path("views/<int:view_id>/delete/", saved_views.delete, name="delete_view"),
    path("bulk/", bulk.begin, name="bulk"),
    path("bulk/actions/", bulk.bulk_actions, name="bulk_actions"),
    path("bulk/actions/<int:bulk_id>/", bulk.bulk_action, name="bulk_action"),
    path("bulk/actions/<int:bulk_id>/stop/", bulk.stop, name="bulk_stop"),
    path("sessions/<uuid:session_id>/", session.session, name="session"),
    path("sessions/<uuid:session_id>/earlier/", session.earlier, name="earlier"),
    path("sessions/<uuid:session_id>/live/", session.live, name="live"),
    path("sessions/<uuid:session_id>/tails/<int:branch_number>/", session.tail, name="tail"),
    path("sessions/<uuid:session_id>/find/", search.found, name="find"),
    path("sessions/<uuid:session_id>/conversation/", tabs.conversation_tab, name="conversation"),
    path("sessions/<uuid:session_id>/state/", tabs.state_tab, name="state"),
    path("sessions/<uuid:session_id>/checkpoints/", tabs.checkpoints_tab, name="checkpoints"),
    path("sessions/<uuid:session_id>/audit/", tabs.audit_tab, name="audit"),
    path("sessions/<uuid:session_id>/json/", tabs.json_tab, name="json"),
    path("sessions/<uuid:session_id>/source/", overview.compare_source, name="compare-source"),
    path("sessions/<uuid:session_id>/calls/<int:call_id>/", tabs.call, name="call"),
    path("sessions/<uuid:session_id>/<slug:name>/", dialogs.dialog, name="act"),
]
