"""iLLaDA-8B: a bidirectional Llama with grouped-query attention, model_type "illada"."""
