"""Two traces compared."""
