"""`dopsd tournament`: many methods on several tasks, with equal budgets, tuning and seeds."""
