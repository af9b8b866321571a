"""Who may do what, what is possible now, what is hidden, and the errors that say why something was refused."""
