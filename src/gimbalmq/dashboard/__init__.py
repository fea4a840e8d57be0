"""The page an operator looks at (extra ``gimbalmq[dashboard]``): what ``gimbalmq.admin`` tells, live."""
