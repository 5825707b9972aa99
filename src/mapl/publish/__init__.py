"""Public values go out here: certificate, report, and the folder with both."""
