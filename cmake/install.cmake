# Filled in with the package files.
