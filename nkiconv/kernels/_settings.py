"""Checks the settings of algorithms that do not declare them in `schedules` yet."""

from ..schedules.settings import config_refusal, setting, value_refusal


def settings_refusal(config, table, algorithm):
    """What is wrong with the names and values of a config; "" if nothing is.

    table: (name, accepted) of each setting: accepted as `schedules._settings.Setting` has it.
    """
    names = ()
    for entry in table:
        names = names + (entry[0],)
    reason = config_refusal(config, names, algorithm)
    for entry in table:
        if reason == "" and len(entry[1]) > 0:
            reason = value_refusal(entry[0], setting(config, entry[0], entry[1][0]), entry[1])
    return reason
