"""How people ask for the shop's tools."""

from genenv.domains.tool_calling.phrasings.template import Phrases, ToolPhrases

SHOP: dict[str, ToolPhrases] = {
    "search_products": ToolPhrases(
        slots={"query": "product", "max_price": "price"},
        training=Phrases(
            explicit=(
                "Find {query} for at most {max_price} dollars",
                "Search the shop for {query} that cost no more than ${max_price}",
                "Which {query} can I get for up to {max_price} dollars?",
                "Show me {query} with a maximum price of {max_price} dollars",
            ),
            relative=(
                "Find {query} for at most {max_price:rel} dollars",
                "Which {query} does the shop have for up to {max_price:rel} bucks?",
            ),
            indirect=(
                "I need {query}, but I can't spend more than {max_price} dollars on them.",
                "I'm curious what {query} the shop has. My limit is {max_price} dollars.",
            ),
            missing={
                "max_price": (
                    "Search the shop for {query} within my budget",
                    "Find {query} that I can afford",
                ),
                "query": ("Find me something in the shop for at most {max_price} dollars",),
            },
        ),
        held_out=Phrases(
            explicit=(
                "Look for {query} in the shop, {max_price} dollars at the very most",
                "Does the shop sell {query} for {max_price} dollars or less?",
                "Browse the shop for {query}, price limit ${max_price}",
            ),
            relative=(
                "Look for {query} in the shop that cost {max_price:rel} dollars or less",
                "Browse the shop for {query} with a price limit of {max_price:rel} dollars",
            ),
            indirect=(
                "My old {query} are worn out; I wonder what the shop offers for {max_price} dollars or less.",
                "With {max_price} dollars in my pocket, I would love to see which {query} are on sale.",
            ),
            missing={"max_price": ("Look for {query} in the shop that are cheap enough for me",)},
        ),
    ),
    "add_to_cart": ToolPhrases(
        slots={"product": "product", "quantity": "quantity"},
        training=Phrases(
            explicit=(
                "Add {quantity} {product} to my cart",
                "Put {quantity} {product} into my shopping cart",
                "Can you add {product} to my cart? I want {quantity} of them.",
                "I want {quantity} {product} in my cart.",
            ),
            relative=(
                "Add {quantity:rel} {product} to my cart",
                "Put {quantity:rel} {product} into my shopping cart",
            ),
            indirect=(
                "My cart is still missing {quantity} {product}.",
                "When I get to the checkout, there should be {quantity} {product} in my cart.",
            ),
            missing={
                "quantity": (
                    "Add some {product} to my cart",
                    "Put a number of {product} into my shopping cart",
                ),
                "product": ("Put {quantity} of those into my shopping cart",),
            },
        ),
        held_out=Phrases(
            explicit=(
                "Place {quantity} {product} in the shopping basket",
                "Drop {quantity} {product} into my basket",
                "Could {quantity} {product} go into my basket, please?",
            ),
            relative=(
                "Drop {quantity:rel} {product} into my basket",
                "Could you place {quantity:rel} {product} in the shopping basket?",
            ),
            indirect=(
                "Before I check out, my basket ought to hold {quantity} {product}.",
                "I forgot {product} when I filled my basket, and I need {quantity} of them.",
            ),
            missing={"quantity": ("Drop several {product} into my basket",)},
        ),
    ),
    "place_order": ToolPhrases(
        slots={"product": "product", "quantity": "quantity", "address": "street"},
        training=Phrases(
            explicit=(
                "Order {quantity} {product} to {address}",
                "Buy {quantity} {product} and have them delivered to {address}",
                "Place an order for {quantity} {product}, delivery address {address}",
                "Can you order {quantity} {product} for delivery to {address}?",
            ),
            relative=(
                "Order {quantity:rel} {product} to {address}",
                "Buy {quantity:rel} {product} and have them sent to {address}",
            ),
            indirect=(
                "I'm out of {product}. Have {quantity} of them brought to {address}, please.",
                "{quantity} {product} should arrive at {address} as soon as the shop can manage.",
            ),
            missing={
                "address": (
                    "Order {quantity} {product}",
                    "Place an order for {quantity} {product} and have them delivered",
                ),
                "quantity": ("Order some {product} to {address}",),
            },
        ),
        held_out=Phrases(
            explicit=(
                "Purchase {quantity} {product}, shipping them to {address}",
                "Have the shop send {quantity} {product} to {address}",
                "I would like to buy {quantity} {product}. Ship them to {address}.",
            ),
            relative=(
                "Purchase {quantity:rel} {product} and ship them to {address}",
                "Have the shop send {quantity:rel} {product} to {address}",
            ),
            indirect=(
                (
                    "The people at {address} are short of {quantity} {product}, "
                    "and the shop could send them at my expense."
                ),
                "We have run out of {product} at {address}; {quantity} new ones from the shop would do.",
            ),
            missing={"address": ("Purchase {quantity} {product} and ship them",)},
        ),
    ),
    "cancel_order": ToolPhrases(
        slots={"order_id": "order_id"},
        training=Phrases(
            explicit=(
                "Cancel order {order_id}",
                "Cancel my order with the number {order_id}",
                "Please call off order number {order_id}.",
                "Withdraw the order {order_id}",
            ),
            indirect=(
                "I changed my mind about order {order_id} and don't want it any more.",
                "Order {order_id} was a mistake. I hope it has not been sent yet.",
            ),
            missing={"order_id": ("Cancel my order", "I ordered something by mistake. Please cancel it.")},
        ),
        held_out=Phrases(
            explicit=(
                "Stop order {order_id} from going out",
                "Revoke my order number {order_id}",
                "Could you cancel the purchase with order number {order_id}?",
            ),
            indirect=(
                "I bought the same thing elsewhere, so order {order_id} is no longer wanted.",
                (
                    "Nobody here needs what I bought under order number "
                    "{order_id}; please spare me the delivery."
                ),
            ),
            missing={"order_id": ("Stop my order from going out",)},
        ),
    ),
    "track_order": ToolPhrases(
        slots={"order_id": "order_id"},
        training=Phrases(
            explicit=(
                "Track order {order_id}",
                "Where is my order {order_id}?",
                "Check the status of order number {order_id}",
                "Tell me how far along order {order_id} is",
            ),
            indirect=(
                "I'm still waiting for order {order_id} and wonder where it is.",
                "Order {order_id} should have been here long ago.",
            ),
            missing={"order_id": ("Track my order", "Where is the thing I ordered?")},
        ),
        held_out=Phrases(
            explicit=(
                "Find out when order {order_id} will get here",
                "Give me the delivery status of order {order_id}",
                "Has order number {order_id} been shipped?",
            ),
            indirect=(
                "I keep looking out of the window for order {order_id}.",
                "The parcel for order {order_id} seems to be taking forever.",
            ),
            missing={"order_id": ("Give me the delivery status of my parcel",)},
        ),
    ),
}
