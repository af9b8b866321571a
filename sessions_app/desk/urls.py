"""The desk's addresses: one for every page, and one for every action on a session."""

from django.urls import path

from sessions_app.desk.views import (
    agents,
    bulk,
    compare,
    dialogs,
    inbox,
    lists,
    saved_views,
    tabs,
    timeline,
)

urlpatterns = [
    path("", lists.sessions_page, name="desk"),
    path("start/", dialogs.start, name="start"),
    path("keys/", dialogs.keys, name="keys"),
    path("inbox/", inbox.inbox_page, name="inbox"),
    path("approvals/", inbox.approvals_moved, name="approvals"),
    path("approvals/batch/", inbox.decide_batch, name="decide-batch"),
    path("agents/", agents.agents_page, name="agents"),
    path("agents/<str:key>/", agents.agent_page, name="agent"),
    path("workers/", agents.workers_page, name="workers"),
    path("compare/", compare.compare_page, name="compare"),
    path("views/", saved_views.views_page, name="views"),
    path("views/save/", saved_views.save, name="save_view"),
    path("views/<int:view_id>/delete/", saved_views.delete, name="delete_view"),
    path("bulk/", bulk.begin, name="bulk"),
    path("bulk/actions/", bulk.bulk_actions, name="bulk_actions"),
    path("bulk/actions/<int:bulk_id>/", bulk.bulk_action, name="bulk_action"),
    path("bulk/actions/<int:bulk_id>/stop/", bulk.stop, name="bulk_stop"),
    path("sessions/<uuid:session_id>/", timeline.timeline_tab, name="session"),
    path("sessions/<uuid:session_id>/earlier/", timeline.earlier_steps, name="earlier"),
    path("sessions/<uuid:session_id>/live/", timeline.live, name="live"),
    path(
        "sessions/<uuid:session_id>/branches/<int:branch_number>/",
        timeline.discarded_branch,
        name="discarded",
    ),
    path(
        "sessions/<uuid:session_id>/branches/<int:branch_number>/compare/",
        compare.compare_with_branch,
        name="compare-branch",
    ),
    path(
        "sessions/<uuid:session_id>/tails/<int:branch_number>/",
        timeline.discarded_branch_moved,
        name="tails",
    ),
    path("sessions/<uuid:session_id>/find/", tabs.find_tab, name="find"),
    path("sessions/<uuid:session_id>/conversation/", tabs.conversation_tab, name="conversation"),
    path("sessions/<uuid:session_id>/state/", tabs.state_tab, name="state"),
    path("sessions/<uuid:session_id>/memories/", tabs.memories_tab, name="memories"),
    path("sessions/<uuid:session_id>/checkpoints/", tabs.checkpoints_tab, name="checkpoints"),
    path("sessions/<uuid:session_id>/audit/", tabs.audit_tab, name="audit"),
    path("sessions/<uuid:session_id>/reveal/", tabs.reveal, name="reveal"),
    path("sessions/<uuid:session_id>/json/", tabs.json_tab, name="json"),
    path("sessions/<uuid:session_id>/source/", compare.compare_with_source, name="compare-source"),
    path("sessions/<uuid:session_id>/calls/<int:call_id>/", tabs.call_page, name="call"),
    path(
        "sessions/<uuid:session_id>/model-calls/<int:model_call_id>/",
        tabs.model_call_page,
        name="model-call",
    ),
    path(
        "sessions/<uuid:session_id>/definition-changes/",
        tabs.definition_changes_page,
        name="definition-changes",
    ),
    path("sessions/<uuid:session_id>/<slug:name>/", dialogs.dialog, name="dialog"),
]
