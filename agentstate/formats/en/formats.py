"""Dates and times as the desk writes them, with 24 hours and the zone: the admin goes by these, too."""

DATE_FORMAT = SHORT_DATE_FORMAT = "d M Y"
TIME_FORMAT = "H:i:s"
DATETIME_FORMAT = SHORT_DATETIME_FORMAT = "d M Y, H:i:s T"
