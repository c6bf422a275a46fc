"""d-OPSD: on-policy self-distillation with the self-future as teacher."""
