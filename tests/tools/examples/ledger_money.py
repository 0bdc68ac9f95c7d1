"""What the ledger imports."""


def rounded(amount):
    return round(amount, 2)
