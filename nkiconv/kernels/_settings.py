"""Reads and checks the settings of a config: None, or a tuple of (name, value) pairs, as `Plan.config` is."""


def setting(config, name, default):
    """Value of a config's entry, or the default; a config is None or a tuple of (name, value) pairs."""
    found = default
    for entry in () if config == None else config:
        if entry[0] == name:
            found = entry[1]
    return found


def config_refusal(config, names, algorithm):
    """What is wrong with a config that must be None or a tuple of pairs with these names; "" if nothing is."""
    if config == None:
        return ""
    if not isinstance(config, tuple):
        return f"config={config}: must be None or a tuple of (name, value) pairs, as Plan.config is"
    for index in range(len(config)):
        entry = config[index]
        if not isinstance(entry, tuple) or len(entry) != 2:
            return f"config={config}: entry {index} must be a pair (name, value)"
        if entry[0] not in names:
            return f"config={config}: {algorithm} has no setting {entry[0]}; it has {names}"
        for before in range(index):
            if config[before][0] == entry[0]:
                return f"config={config}: {entry[0]} stands there twice; give one value"
    return ""


#: In a table of settings, of one that is True or False; others have (least, most) of an int, or words to choose from.
FLAG = (False, True)
#: The same of one whose values the algorithm checks itself.
ANY = ()


def settings_refusal(config, table, algorithm):
    """What is wrong with the names and values of a config; "" if nothing is.

    table: (name, accepted) of each setting, as FLAG has it.
    """
    names = ()
    for entry in table:
        names = names + (entry[0],)
    reason = config_refusal(config, names, algorithm)
    if reason != "":
        return reason
    for entry in table:
        name, accepted = entry
        if len(accepted) == 0:
            continue
        value = setting(config, name, accepted[0])
        if isinstance(accepted[0], bool):
            if not isinstance(value, bool):
                return f"config {name}={value}: must be True or False"
        elif isinstance(accepted[0], str):
            if value not in accepted:
                return f"config {name}={value}: must be one of {accepted}"
        elif not isinstance(value, int) or isinstance(value, bool) or value < accepted[0] or value > accepted[1]:
            return f"config {name}={value}: must be an int from {accepted[0]} to {accepted[1]}"
    return ""
