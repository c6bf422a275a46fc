"""Problems and scorers of the library reasoning-gym, defined in params.yaml."""
