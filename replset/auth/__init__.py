"""Users: their roles and what these allow, and the SCRAM exchange. Pure: the commands read and write the users."""
