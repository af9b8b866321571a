"""The desk's addresses. Everything that can be seen has one, and everything that can be done."""

from django.urls import path

from sessions_app.views import acts, find, lists, many, rooms, saved, session, tabs

urlpatterns = [
    path("", lists.sessions, name="desk"),
    path("start/", acts.start, name="start"),
    path("keys/", acts.keys, name="keys"),
    path("approvals/", rooms.approvals, name="approvals"),
    path("approvals/batch/", rooms.decide_batch, name="decide-batch"),
    path("agents/", rooms.agents, name="agents"),
    path("agents/<str:key>/", rooms.agent, name="agent"),
    path("workers/", rooms.workers, name="workers"),
    path("compare/", rooms.compare, name="compare"),
    path("views/", saved.views, name="views"),
    path("views/save/", saved.save, name="save_view"),
    path("views/<int:view_id>/delete/", saved.delete, name="delete_view"),
    path("many/", many.begin, name="bulk"),
    path("many/acts/", many.acts, name="bulk_acts"),
    path("many/acts/<int:act_id>/", many.act, name="bulk_act"),
    path("many/acts/<int:act_id>/stop/", many.stop, name="bulk_stop"),
    path("sessions/<uuid:session_id>/", session.session, name="session"),
    path("sessions/<uuid:session_id>/earlier/", session.earlier, name="earlier"),
    path("sessions/<uuid:session_id>/live/", session.live, name="live"),
    path("sessions/<uuid:session_id>/tails/<int:branch_number>/", session.tail, name="tail"),
    path("sessions/<uuid:session_id>/find/", find.found, name="find"),
    path("sessions/<uuid:session_id>/conversation/", tabs.conversation_tab, name="conversation"),
    path("sessions/<uuid:session_id>/state/", tabs.state_tab, name="state"),
    path("sessions/<uuid:session_id>/checkpoints/", tabs.checkpoints_tab, name="checkpoints"),
    path("sessions/<uuid:session_id>/audit/", tabs.audit_tab, name="audit"),
    path("sessions/<uuid:session_id>/json/", tabs.json_tab, name="json"),
    path("sessions/<uuid:session_id>/source/", rooms.compare_source, name="compare-source"),
    path("sessions/<uuid:session_id>/calls/<int:call_id>/", tabs.call, name="call"),
    path("sessions/<uuid:session_id>/<slug:name>/", acts.act, name="act"),
]
