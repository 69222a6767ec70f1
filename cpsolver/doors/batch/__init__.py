"""Sweeps: many specs from one file, solved in parallel, kept one by one in a database, resumed where they stopped."""
