"""False alarms of the word error rate's interval, and the damage that it finds."""
