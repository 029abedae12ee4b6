"""Reads and checks the settings of a config: None, or a tuple of (name, value) pairs, as `Plan.config` is."""


def setting(config, name, default):
    """Value of a config's entry, or the default; a config is None or a tuple of (name, value) pairs."""
    found = default
    if config != None:
        for index in range(len(config)):
            if config[index][0] == name:
                found = config[index][1]
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


def numbers_refusal(config, limits):
    """What is wrong with settings that are ints; "" if nothing is. limits: a tuple of (name, least, most)."""
    for index in range(len(limits)):
        name, least, most = limits[index]
        value = setting(config, name, least)
        if not isinstance(value, int) or isinstance(value, bool) or value < least or value > most:
            return f"config {name}={value}: must be an int from {least} to {most}"
    return ""
